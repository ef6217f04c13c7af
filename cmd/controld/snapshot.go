package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/tripod-cluster/tripod/backup"
	"github.com/tripod-cluster/tripod/backup/etcddb"
	"github.com/tripod-cluster/tripod/controlplane/enroll"
	"github.com/tripod-cluster/tripod/controlplane/peer"
)

const (
	// defaultBump is far above the revisions that are written between two snapshots.
	defaultBump = 1_000_000_000
	// fetchFor bounds how long another machine is asked for a list or a snapshot.
	fetchFor = 30 * time.Minute
)

func snapshotCommand(f *flags) *cobra.Command {
	c := &cobra.Command{
		Use: "snapshot", Short: "Save, list, inspect and restore snapshots of the store",
		Long: "A snapshot holds all objects of the cluster with their history. It is a file in the\nform of an etcd server's database: etcdutl reads it, an etcd server restores it, and\nthose of etcd servers from 3.4 on can be restored here.",
	}
	c.AddCommand(saveCommand(f), listCommand(f), inspectCommand(f), restoreCommand(f))
	return c
}

// printer prints v as JSON, or as text.
func printer(c *cobra.Command, output string, v any, text func(io.Writer) error) error {
	switch output {
	case "json":
		e := json.NewEncoder(c.OutOrStdout())
		e.SetIndent("", "  ")
		return e.Encode(v)
	case "":
		return text(c.OutOrStdout())
	}
	return fmt.Errorf("-o %s is not known (known: json)", output)
}

func saveCommand(f *flags) *cobra.Command {
	var output string
	c := &cobra.Command{
		Use: "save [FILE]", Short: "Take a snapshot now", Args: cobra.MaximumNArgs(1),
		Long: "save takes a snapshot of what this host's peer holds, into FILE, or into the configured\ndirectory, where it stays until it is deleted by hand.",
		RunE: func(c *cobra.Command, args []string) error {
			cfg, err := f.load()
			if err != nil {
				return err
			}
			if len(args) == 1 {
				if _, err := os.Lstat(args[0]); err == nil {
					return fmt.Errorf("%s exists already: choose another name", args[0])
				}
			}
			s, err := peer.NewAdmin(peer.AdminSocket).SaveSnapshot(c.Context())
			if err != nil {
				return err
			}
			path := filepath.Join(cfg.SnapshotDirectory, s.Name)
			if len(args) == 1 {
				if err := moveFile(path, args[0]); err != nil {
					return err
				}
				path = args[0]
			}
			sum, err := etcddb.Verify(path)
			if err != nil {
				return err
			}
			out := struct {
				Path string `json:"path"`
				backup.File
				SHA256 string `json:"sha256"`
			}{path, s, sum}
			return printer(c, output, out, func(w io.Writer) error {
				_, err := fmt.Fprintf(w, "%s: revision %d, %d bytes\n", path, s.Revision, s.Bytes)
				return err
			})
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "", "json")
	return c
}

// moveFile copies a file to another file system, durably, and removes it.
func moveFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return fmt.Errorf("read the snapshot: %w", err)
	}
	defer in.Close()
	tmp := to + ".unfinished"
	out, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("write the snapshot: %w", err)
	}
	_, err = io.Copy(out, in)
	if err = errors.Join(err, out.Sync(), out.Close()); err == nil {
		err = os.Rename(tmp, to)
	}
	if err != nil {
		os.Remove(tmp)
		return fmt.Errorf("write the snapshot to %s (it is in %s): %w", to, from, err)
	}
	if err := os.Remove(from); err != nil {
		return fmt.Errorf("remove the snapshot that was moved: %w", err)
	}
	return nil
}

// placed is a snapshot and where it is.
type placed struct {
	Place string `json:"place"` // "directory", "s3", "ssh"
	backup.File
}

func listCommand(f *flags) *cobra.Command {
	var output string
	c := &cobra.Command{
		Use: "list", Short: "List the snapshots here and on other machines", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := f.load()
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(c.Context(), time.Minute)
			defer cancel()
			local, err := backup.List(cfg.SnapshotDirectory)
			if err != nil {
				return err
			}
			all := []placed{}
			for _, s := range local {
				all = append(all, placed{backup.Local, s})
			}
			var failed error
			for _, d := range cfg.SnapshotDestinations() {
				there, err := d.List(ctx)
				failed = errors.Join(failed, err)
				for _, s := range there {
					all = append(all, placed{d.Name(), s})
				}
			}
			err = printer(c, output, all, func(w io.Writer) error {
				t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
				fmt.Fprintln(t, "SNAPSHOT\tTAKEN\tREVISION\tBYTES")
				for _, s := range all {
					name := s.Name
					if s.Place != backup.Local {
						name = s.Place + ":" + name
					}
					fmt.Fprintf(t, "%s\t%s\t%d\t%d\n", name, s.Taken.Format(time.RFC3339), s.Revision, s.Bytes)
				}
				return t.Flush()
			})
			return errors.Join(err, failed)
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "", "json")
	return c
}

// fetch makes the snapshot that an argument names available as a file.
func fetch(ctx context.Context, cfg peer.Config, ref string) (string, func(), error) {
	ctx, cancel := context.WithTimeout(ctx, fetchFor)
	defer cancel()
	return backup.Fetch(ctx, ref, cfg.SnapshotDirectory, cfg.StateDir, cfg.SnapshotDestinations())
}

const whichSnapshot = "SNAPSHOT is a file, or a name that `controld snapshot list` shows."

func inspectCommand(f *flags) *cobra.Command {
	var output string
	var skip bool
	c := &cobra.Command{
		Use: "inspect SNAPSHOT", Short: "Check a snapshot and say what is in it", Args: cobra.ExactArgs(1),
		Long: "inspect reads the whole snapshot, checks it as a restore does, and says what it holds.\n" + whichSnapshot,
		RunE: func(c *cobra.Command, args []string) error {
			cfg, err := f.load()
			if err != nil {
				return err
			}
			path, done, err := fetch(c.Context(), cfg, args[0])
			if err != nil {
				return err
			}
			defer done()
			_, info, err := etcddb.Read(path, etcddb.Options{SkipHashCheck: skip})
			if err != nil {
				return err
			}
			return printer(c, output, info, func(w io.Writer) error { return printInfo(w, info) })
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "", "json")
	c.Flags().BoolVar(&skip, "skip-hash-check", false, "take a file without a checksum, or with a wrong one")
	return c
}

func printInfo(w io.Writer, i etcddb.Info) error {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	row := func(key string, format string, args ...any) {
		fmt.Fprintf(t, "%s\t%s\n", key, fmt.Sprintf(format, args...))
	}
	row("revision", "%d", i.Revision)
	if i.CompactRevision > 0 {
		row("compacted at", "%d", i.CompactRevision)
	}
	row("keys", "%d, in %d versions", i.Keys, i.Versions)
	row("leases", "%d", i.Leases)
	if i.LeasesMissing > 0 {
		row("keys without their lease", "%d", i.LeasesMissing)
	}
	if i.Users > 0 || i.Roles > 0 {
		row("users, roles", "%d, %d, authentication enabled: %t", i.Users, i.Roles, i.Auth)
	}
	row("bytes", "%d", i.Bytes)
	row("sha256", "%s", i.SHA256)
	row("etcd's versions", "storage %s, cluster %s", i.StorageVer, i.ClusterVer)
	if o := i.Origin; o.Cluster != 0 {
		row("taken", "%s, of cluster %016x by controld %s", o.Taken.Format(time.RFC3339), o.Cluster, o.Program)
	}
	for _, m := range i.Origin.Members {
		row("member", "%s %016x %v", m.Name, m.ID, m.PeerURLs)
	}
	return t.Flush()
}

// revisionFlags are how the revision goes on in a new cluster.
func revisionFlags(c *cobra.Command) *enroll.Revision {
	r := &enroll.Revision{}
	c.Flags().Int64Var(&r.Bump, "bump-revision", defaultBump, "raise the revision by this much, so that no client sees it go back")
	c.Flags().BoolVar(&r.MarkCompacted, "mark-compacted", true, "forget the history before the new revision, so that caches of clients start anew")
	return r
}

func restoreCommand(f *flags) *cobra.Command {
	var yes, skip bool
	var rev *enroll.Revision
	c := &cobra.Command{
		Use: "restore SNAPSHOT", Short: "Replace the cluster by one that holds a snapshot", Args: cobra.ExactArgs(1),
		Long: "restore makes this host's peer the first of a new cluster that holds the snapshot, with\nthe certificates of the present one, and returns when it serves. Its leader tells the other\npeers; they put their state aside and follow. It is run on one peer only. The snapshot is\nchecked before anything is touched.\n" + whichSnapshot,
		RunE: func(c *cobra.Command, args []string) error {
			cfg, err := f.load()
			if err != nil {
				return err
			}
			path, done, err := fetch(c.Context(), cfg, args[0])
			if err != nil {
				return err
			}
			defer done()
			ctx, cancel := context.WithTimeout(c.Context(), enrollTimeout)
			defer cancel()
			return enroll.Restore(ctx, enroll.RestoreOptions{Config: cfg, Path: path, SkipHashCheck: skip, Revision: *rev, Yes: yes, Out: c.OutOrStdout()})
		},
	}
	rev = revisionFlags(c)
	c.Flags().BoolVar(&skip, "skip-hash-check", false, "take a file without a checksum, or with a wrong one")
	c.Flags().BoolVar(&yes, "yes", false, "really replace the cluster")
	return c
}

func recoverCommand(f *flags) *cobra.Command {
	var accept bool
	var rev *enroll.Revision
	c := &cobra.Command{
		Use: "recover", Short: "Begin a new cluster with what this peer holds", Args: cobra.NoArgs,
		Long: "recover is for a cluster that has lost a majority of its peers for good. It says what this\npeer holds and what may be lost, and with --accept-data-loss makes this peer the first of a\nnew cluster that holds it. Run it on one peer only: the one that holds most.",
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := f.load()
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(c.Context(), enrollTimeout)
			defer cancel()
			return enroll.Recover(ctx, enroll.RecoverOptions{Config: cfg, Revision: *rev, AcceptDataLoss: accept, Out: c.OutOrStdout()})
		},
	}
	rev = revisionFlags(c)
	c.Flags().BoolVar(&accept, "accept-data-loss", false, "begin the new cluster; writes that this peer never got are lost")
	return c
}
