package nettest

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/rpc"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// agentFD is the agent's end of the socket to the test.
const agentFD = 3

// patience bounds one exchange. It is only ever waited out when packets are dropped, so it is short enough for tests
// that expect that and resends make up for a slow machine.
const patience = 3 * time.Second

func agentMain() {
	if err := loopbackUp(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	conn, err := net.FileConn(os.NewFile(agentFD, "test"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	s := rpc.NewServer()
	if err := s.RegisterName("Agent", &Agent{talks: map[int]talk{}}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	s.ServeConn(conn)
}

// Agent is what a process of the stage can do, called by the test through Host.
type Agent struct {
	mu    sync.Mutex
	next  int
	talks map[int]talk
}

type talk interface {
	say() (Answer, error)
	Close() error
}

// Answer is what a server said of one exchange.
type Answer struct {
	Who  string         // the server's name
	Saw  netip.AddrPort // the source address the server saw
	Fail string         // "", "refused", "timeout" or an error text
}

// Setup is how a link of an agent is to be configured.
type Setup struct {
	Link   string
	Addrs  []string          // prefixes
	Routes map[string]string // destination to gateway
	Lo     []string          // addresses for lo
	Sysctl map[string]string // below /proc/sys
	Bridge bool              // Link is a new bridge with every other link as its port
}

// Configure sets up the agent's namespace.
func (a *Agent) Configure(s Setup, _ *bool) error { return configure(s) }

func configure(s Setup) error {
	for k, v := range s.Sysctl {
		if err := os.WriteFile("/proc/sys/"+k, []byte(v), 0o644); err != nil {
			return err
		}
	}
	if s.Bridge {
		if err := bridgeAll(s.Link); err != nil {
			return err
		}
	}
	l, err := netlink.LinkByName(s.Link)
	if err != nil {
		return fmt.Errorf("link %s: %w", s.Link, err)
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return err
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	for link, addrs := range map[netlink.Link][]string{l: s.Addrs, lo: s.Lo} {
		for _, p := range addrs {
			ad, err := netlink.ParseAddr(p)
			if err != nil {
				return err
			}
			if ad.IP.To4() == nil {
				ad.Flags = unix.IFA_F_NODAD
			}
			if err := netlink.AddrAdd(link, ad); err != nil {
				return fmt.Errorf("address %s on %s: %w", p, link.Attrs().Name, err)
			}
		}
	}
	for dst, gw := range s.Routes {
		_, n, err := net.ParseCIDR(dst)
		if err != nil {
			return err
		}
		r := &netlink.Route{LinkIndex: l.Attrs().Index, Dst: n}
		if gw != "" {
			r.Gw = net.ParseIP(gw)
		} else {
			r.Scope = netlink.SCOPE_LINK
		}
		if err := netlink.RouteAdd(r); err != nil {
			return fmt.Errorf("route %s via %q: %w", dst, gw, err)
		}
	}
	return nil
}

func bridgeAll(name string) error {
	links, err := netlink.LinkList()
	if err != nil {
		return err
	}
	br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}
	if err := netlink.LinkAdd(br); err != nil {
		return err
	}
	for _, l := range links {
		if l.Type() != "veth" {
			continue
		}
		if err := netlink.LinkSetMaster(l, br); err != nil {
			return err
		}
		if err := netlink.LinkSetUp(l); err != nil {
			return err
		}
	}
	return nil
}

// Listen is where a server is to listen and by what name it answers.
type Listen struct {
	Proto string // tcp or udp
	IP    string // "": any; a datagram server with several addresses has to name the one it answers from
	Port  int
	Name  string
}

// Serve starts a server that answers each line or datagram with its name and the source it saw.
func (a *Agent) Serve(l Listen, _ *bool) error {
	at := net.JoinHostPort(l.IP, fmt.Sprint(l.Port))
	if l.Proto == "udp" {
		c, err := net.ListenPacket("udp", at)
		if err != nil {
			return err
		}
		go func() {
			b := make([]byte, 2048)
			for {
				_, from, err := c.ReadFrom(b)
				if err != nil {
					return
				}
				_, _ = c.WriteTo([]byte(l.Name+" "+from.String()+"\n"), from)
			}
		}()
		return nil
	}
	ln, err := net.Listen("tcp", at)
	if err != nil {
		return err
	}
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				r := bufio.NewReader(c)
				for {
					if _, err := r.ReadString('\n'); err != nil {
						return
					}
					if _, err := fmt.Fprintf(c, "%s %s\n", l.Name, c.RemoteAddr()); err != nil {
						return
					}
				}
			}()
		}
	}()
	return nil
}

// Dial is whom to ask.
type Dial struct {
	Proto string
	To    string
	Times int // for Ask: as many separate connections
}

// Ask opens connections one after the other and returns each one's answer.
func (a *Agent) Ask(d Dial, out *[]Answer) error {
	for range max(d.Times, 1) {
		t, ans := open(d)
		if t != nil {
			var err error
			if ans, err = t.say(); err != nil {
				ans.Fail = failure(err)
			}
			_ = t.Close()
		}
		*out = append(*out, ans)
	}
	return nil
}

// Open opens one connection, for Say.
func (a *Agent) Open(d Dial, id *int) error {
	t, ans := open(d)
	if t == nil {
		return errors.New(ans.Fail)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.next++
	a.talks[a.next] = t
	*id = a.next
	return nil
}

// Say exchanges one line on an open connection.
func (a *Agent) Say(id int, out *Answer) error {
	a.mu.Lock()
	t := a.talks[id]
	a.mu.Unlock()
	ans, err := t.say()
	if err != nil {
		ans.Fail = failure(err)
	}
	*out = ans
	return nil
}

func open(d Dial) (talk, Answer) {
	c, err := net.DialTimeout(d.Proto, d.To, patience)
	if err != nil {
		return nil, Answer{Fail: failure(err)}
	}
	return &exchange{c: c, r: bufio.NewReader(c), datagrams: d.Proto == "udp"}, Answer{}
}

type exchange struct {
	c         net.Conn
	r         *bufio.Reader
	datagrams bool
}

func (e *exchange) Close() error { return e.c.Close() }

func (e *exchange) say() (Answer, error) {
	tries, wait := 1, patience
	if e.datagrams {
		tries, wait = 6, patience/6
	}
	var err error
	for range tries {
		if _, err = fmt.Fprintln(e.c, "hello"); err != nil {
			return Answer{}, err
		}
		if err = e.c.SetReadDeadline(time.Now().Add(wait)); err != nil {
			return Answer{}, err
		}
		var line string
		if line, err = e.r.ReadString('\n'); err == nil {
			who, saw, _ := strings.Cut(strings.TrimSpace(line), " ")
			from, perr := netip.ParseAddrPort(saw)
			return Answer{Who: who, Saw: netip.AddrPortFrom(from.Addr().Unmap(), from.Port())}, perr
		}
		var timeout net.Error
		if !errors.As(err, &timeout) || !timeout.Timeout() {
			break
		}
	}
	return Answer{}, err
}

func failure(err error) string {
	var timeout net.Error
	switch {
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.EPERM): // the latter: this machine's own output rules
		return "refused"
	case errors.As(err, &timeout) && timeout.Timeout():
		return "timeout"
	}
	return err.Error()
}
