package main

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tripod-cluster/tripod/test/cluster"
)

// importing bounds how long noded may take to import all archives.
const importing = 10 * time.Minute

// archiveNames returns the image names in an archive of images/pack.
func archiveNames(path string) ([]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("%s: no index.json in it", path)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if h.Name != "index.json" {
			continue
		}
		var index struct {
			Manifests []struct{ Annotations map[string]string }
		}
		if err := json.NewDecoder(r).Decode(&index); err != nil {
			return nil, fmt.Errorf("%s: index.json: %w", path, err)
		}
		var names []string
		for _, m := range index.Manifests {
			names = append(names, m.Annotations["io.containerd.image.name"])
		}
		return names, nil
	}
}

// preload hands the archives in dir, which hosts see as hostDir, to noded on every host, and waits until containerd
// has every image.
func preload(ctx context.Context, c cluster.Cluster, dir, hostDir string, screen io.Writer) error {
	archives, err := filepath.Glob(filepath.Join(dir, "*.tar"))
	if err != nil {
		return err
	}
	if len(archives) == 0 {
		return fmt.Errorf("no image archives in %s; images/build makes them", dir)
	}
	var want []string
	for _, path := range archives {
		names, err := archiveNames(path)
		if err != nil {
			return err
		}
		want = append(want, names...)
	}
	ctx, cancel := context.WithTimeout(ctx, importing)
	defer cancel()
	for i := 1; i <= cluster.Hosts; i++ {
		if _, err := c.Sh(ctx, i, `cd /var/lib/noded/images
			for f in `+hostDir+`/*.tar; do n=$(basename "$f"); cmp -s "$f" "$n" || { cp "$f" ".$n.part"; mv ".$n.part" "$n"; }; done`); err != nil {
			return fmt.Errorf("hand images to host %d: %w", i, err)
		}
	}
	said := time.Now()
	for i := 1; i <= cluster.Hosts; i++ {
		for {
			have, err := c.Sh(ctx, i, "ctr -n k8s.io images ls -q")
			if err != nil {
				return fmt.Errorf("list images of host %d: %w", i, err)
			}
			lacks := unknown(slices.Values(want), strings.Fields(have))
			if len(lacks) == 0 {
				break
			}
			if time.Since(said) > 5*time.Second {
				fmt.Fprintf(screen, "host %d imports images, %d of %d to go\n", i, len(lacks), len(want))
				said = time.Now()
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("host %d has not imported %s (see journalctl -u noded there): %w", i, strings.Join(lacks, " "), ctx.Err())
			case <-time.After(time.Second):
			}
		}
	}
	fmt.Fprintf(screen, "%d images on every host\n", len(want))
	return nil
}
