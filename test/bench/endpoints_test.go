package bench

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	access "github.com/tripod-cluster/tripod/test/cluster"
	"github.com/tripod-cluster/tripod/test/figure"
)

const (
	changes = 40
	// pace is the time between two connections that a host opens to see which endpoint answers: the resolution of the
	// figures, and little work beside what is measured.
	pace = 2 * time.Millisecond
)

// endpoints measures from the request that writes a Service's EndpointSlice until a new connection to its ClusterIP
// reaches the new endpoint, on each host. The endpoints are two servers on the switch, of which one at a time is in the
// slice.
func endpoints(t *testing.T) []figure.Figure {
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	ns := namespace(t, "endpoints")
	c := client(t, "")
	var ports [2]int32
	for i := range ports {
		ports[i] = serve(t, byte(i))
	}
	svc, err := c.CoreV1().Services(ns).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "bench"},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "p", Port: 80}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	name, proto, ready := "p", corev1.ProtocolTCP, true
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "bench", Labels: map[string]string{discoveryv1.LabelServiceName: svc.Name}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{cluster.Gateway()}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &ports[0], Protocol: &proto}},
	}
	if slice, err = c.DiscoveryV1().EndpointSlices(ns).Create(ctx, slice, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	addr := net.JoinHostPort(svc.Spec.ClusterIP, "80")
	if _, err := seen(ctx, addr, 0, time.Now()); err != nil { // the Service is there on every host
		t.Fatal(err)
	}
	var each, last, acked []time.Duration
	for n := 1; n <= changes; n++ {
		want := n % 2
		slice.Ports[0].Port = &ports[want]
		began := time.Now()
		var got []time.Duration
		var serr error
		var wg sync.WaitGroup
		wg.Go(func() { got, serr = seen(ctx, addr, byte(want), began) })
		slice, err = c.DiscoveryV1().EndpointSlices(ns).Update(ctx, slice, metav1.UpdateOptions{})
		acked = append(acked, time.Since(began))
		if err != nil {
			cancel()
			wg.Wait()
			t.Fatal(err)
		}
		wg.Wait()
		if serr != nil {
			t.Fatal(serr)
		}
		each = append(each, got...)
		last = append(last, figure.Quantile(got, 1))
	}
	figures := figure.Latency("EndpointSlice write to its acknowledgement", acked)
	figures = append(figures, figure.Latency("EndpointSlice write to traffic on a host", each)...)
	return append(figures, figure.Latency("EndpointSlice write to traffic on all three hosts", last)...)
}

// serve runs a server on the switch that says who it is to everyone who connects, and returns its port.
func serve(t *testing.T, who byte) int32 {
	t.Helper()
	l, err := cluster.Listen()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte{who})
			c.Close()
		}
	}()
	return int32(l.Addr().(*net.TCPAddr).Port)
}

// seen waits until the server called who answers at addr on every host, and returns how long after began it did on each.
func seen(ctx context.Context, addr string, who byte, began time.Time) ([]time.Duration, error) {
	got := make([]time.Duration, access.Hosts)
	errs := make([]error, access.Hosts)
	var wg sync.WaitGroup
	for i := range access.Hosts {
		wg.Go(func() {
			errs[i] = cluster.Inside(cluster.Host(i+1), func() error {
				var err error
				tick := time.NewTicker(pace)
				defer tick.Stop()
				for {
					var answer byte
					if answer, err = ask(ctx, addr); err == nil && answer == who {
						got[i] = time.Since(began)
						return nil
					}
					select {
					case <-ctx.Done():
						return fmt.Errorf("host %d never reached endpoint %d at %s; last answer %d, %v", i+1, who, addr, answer, err)
					case <-tick.C:
					}
				}
			})
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return got, nil
}

// ask opens a connection and reads who answers.
func ask(ctx context.Context, addr string) (byte, error) {
	c, err := (&net.Dialer{Timeout: time.Second, FallbackDelay: -1}).DialContext(ctx, "tcp4", addr)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	if err := c.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
		return 0, err
	}
	var b [1]byte
	_, err = io.ReadFull(c, b[:])
	return b[0], err
}
