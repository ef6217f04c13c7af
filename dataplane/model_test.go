package dataplane

import (
	"net/netip"
	"strings"
	"testing"
)

func TestSelect(t *testing.T) {
	ep := func(n string, flags string) Endpoint {
		has := func(f string) bool { return strings.Contains(flags, f) }
		return Endpoint{Addr: netip.MustParseAddrPort("10.244.0." + n + ":80"), Local: has("l"), Ready: has("r"),
			Serving: has("r") || has("s"), Terminating: has("t"), Elsewhere: has("e")}
	}
	for _, c := range []struct {
		what                 string
		internal, external   bool // policy Local
		eps                  []Endpoint
		wantInt, wantExt     string
		wantCluster, wantLoc string
	}{
		{"ready ones", false, false, []Endpoint{ep("1", "r"), ep("2", ""), ep("3", "rl")}, "1 3", "1 3", "1 3", ""},
		{"no ready: terminating that serve", false, false, []Endpoint{ep("1", "st"), ep("2", "t"), ep("3", "")}, "1", "1", "1", ""},
		{"a ready one keeps terminating ones out", false, false, []Endpoint{ep("1", "st"), ep("2", "r")}, "2", "2", "2", ""},
		{"external Local", false, true, []Endpoint{ep("1", "r"), ep("2", "rl")}, "1 2", "2", "1 2", "2"},
		{"internal Local", true, false, []Endpoint{ep("1", "r"), ep("2", "rl")}, "2", "1 2", "1 2", "2"},
		{"Local with only a terminating one here", false, true, []Endpoint{ep("1", "r"), ep("2", "stl")}, "1", "2", "1", "2"},
		{"Local with none here", true, true, []Endpoint{ep("1", "r")}, "", "", "1", ""},
		{"hinted elsewhere", false, false, []Endpoint{ep("1", "re"), ep("2", "r")}, "2", "2", "2", ""},
		{"hints do not bind policy Local", true, false, []Endpoint{ep("1", "rel"), ep("2", "r")}, "1", "2", "2", "1"},
	} {
		s := &Service{InternalLocal: c.internal, ExternalLocal: c.external, Endpoints: c.eps}
		sel := s.Select()
		for _, g := range []struct {
			name string
			got  []Endpoint
			want string
		}{{"internal", sel.Internal, c.wantInt}, {"external", sel.External, c.wantExt}, {"cluster", sel.Cluster, c.wantCluster}, {"local", sel.Local, c.wantLoc}} {
			var got []string
			for _, e := range g.got {
				got = append(got, e.Addr.Addr().String()[len("10.244.0."):])
			}
			if s := strings.Join(got, " "); s != g.want {
				t.Errorf("%s: %s endpoints %q, want %q", c.what, g.name, s, g.want)
			}
		}
	}
}

func TestIDsAreOrderedAndNamed(t *testing.T) {
	a := ID{Namespace: "ns", Name: "web", Port: "http", Protocol: TCP, Family: IPv4}
	six := a
	six.Family = IPv6
	if a.Compare(six) >= 0 || six.Compare(a) <= 0 || a.Compare(a) != 0 {
		t.Error("families are not ordered")
	}
	if a.String() != "ns/web:http/tcp" || six.String() != "ns/web:http/tcp/ipv6" {
		t.Errorf("names %q and %q", a, six)
	}
	if a.Port = ""; a.PortName() != "ns/web" {
		t.Errorf("unnamed port %q", a.PortName())
	}
}
