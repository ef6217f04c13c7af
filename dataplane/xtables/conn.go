package xtables

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	subsys    = unix.NFNL_SUBSYS_NFTABLES << 8
	sockBytes = 64 << 20 // a whole rule set fits in one transaction
	waitReply = 30 * time.Second
)

// conn is a netfilter netlink socket, bound to the network namespace of the thread that opened it.
type conn struct {
	fd  int
	seq uint32
	in  []byte
}

func dial() (*conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("open a netfilter netlink socket: %w", err)
	}
	c := &conn{fd: fd, in: make([]byte, 256<<10)}
	fail := func(what string, err error) (*conn, error) {
		unix.Close(fd)
		return nil, fmt.Errorf("%s of the netfilter netlink socket: %w", what, err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fail("bind", err)
	}
	for opt, plain := range map[int]int{unix.SO_SNDBUFFORCE: unix.SO_SNDBUF, unix.SO_RCVBUFFORCE: unix.SO_RCVBUF} {
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, opt, sockBytes) != nil { // not privileged over the machine
			if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, plain, sockBytes); err != nil {
				return fail("buffer size", err)
			}
		}
	}
	// Errors need not bring the message back that caused them; old kernels do not know the option.
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1)
	tv := unix.NsecToTimeval(int64(waitReply))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
		return fail("timeout", err)
	}
	return c, nil
}

func (c *conn) close() error { return unix.Close(c.fd) }

// header appends a netlink and an nfnetlink header; the message's length is set by finish.
func header(b []byte, typ, flags uint16, seq uint32, family uint8, res uint16) []byte {
	b = binary.NativeEndian.AppendUint32(b, 0)
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = binary.NativeEndian.AppendUint16(b, flags)
	b = binary.NativeEndian.AppendUint32(b, seq)
	b = binary.NativeEndian.AppendUint32(b, 0)
	b = append(b, family, unix.NFNETLINK_V0)
	return binary.BigEndian.AppendUint16(b, res)
}

func finish(b []byte, at int) {
	binary.NativeEndian.PutUint32(b[at:], uint32(len(b)-at))
}

// message is one netlink message; data starts with the nfgenmsg header and is only valid during the callback.
type message struct {
	typ, flags uint16
	seq        uint32
	data       []byte
}

// errno is what an NLMSG_ERROR or NLMSG_DONE message reports; 0 is an acknowledgement.
func (m message) errno() unix.Errno {
	if len(m.data) < 4 {
		return 0
	}
	return unix.Errno(-int32(binary.NativeEndian.Uint32(m.data)))
}

// receive reads one datagram and calls f for each message in it.
func (c *conn) receive(f func(message)) error {
	var n int
	var err error
	for {
		n, _, err = unix.Recvfrom(c.fd, c.in, 0)
		if err != unix.EINTR {
			break
		}
	}
	switch {
	case errors.Is(err, unix.EAGAIN):
		return fmt.Errorf("no answer from nf_tables within %s: %w", waitReply, os.ErrDeadlineExceeded)
	case err != nil:
		return os.NewSyscallError("recvfrom", err)
	}
	b := c.in[:n]
	for len(b) >= unix.SizeofNlMsghdr {
		l := int(binary.NativeEndian.Uint32(b))
		if l < unix.SizeofNlMsghdr || l > len(b) {
			return errors.New("malformed netlink message from nf_tables")
		}
		f(message{typ: binary.NativeEndian.Uint16(b[4:]), flags: binary.NativeEndian.Uint16(b[6:]),
			seq: binary.NativeEndian.Uint32(b[8:]), data: b[unix.SizeofNlMsghdr:l]})
		if l = (l + 3) &^ 3; l > len(b) {
			l = len(b)
		}
		b = b[l:]
	}
	return nil
}

func (c *conn) send(b []byte) error {
	for {
		err := unix.Sendto(c.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		if err != unix.EINTR {
			return os.NewSyscallError("sendto", err)
		}
	}
}

// attributes calls f for each attribute in b.
func attributes(b []byte, f func(typ uint16, data []byte)) {
	for len(b) >= 4 {
		l := int(binary.NativeEndian.Uint16(b))
		if l < 4 || l > len(b) {
			return
		}
		f(binary.NativeEndian.Uint16(b[2:])&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER), b[4:l])
		if l = (l + 3) &^ 3; l > len(b) {
			return
		}
		b = b[l:]
	}
}

func cstring(b []byte) string {
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}

// errInterrupted: the tables changed while they were listed.
var errInterrupted = errors.New("nf_tables changed during a listing")

// dump lists objects: f is called with each reply's attributes.
func (c *conn) dump(typ uint16, family Family, attrs []byte, f func(attrs []byte)) error {
	c.seq++
	seq := c.seq
	b := header(nil, subsys|typ, unix.NLM_F_REQUEST|unix.NLM_F_DUMP, seq, uint8(family), 0)
	b = append(b, attrs...)
	finish(b, 0)
	if err := c.send(b); err != nil {
		return err
	}
	var result error
	for done := false; !done; {
		err := c.receive(func(m message) {
			if m.seq != seq || done {
				return // left over from an earlier call that gave up
			}
			if m.flags&unix.NLM_F_DUMP_INTR != 0 {
				result = errInterrupted
			}
			switch m.typ {
			case unix.NLMSG_DONE, unix.NLMSG_ERROR:
				done = true
				if e := m.errno(); e != 0 {
					result = e
				}
			default:
				if len(m.data) >= 4 {
					f(m.data[4:])
				}
			}
		})
		if err != nil {
			return err
		}
	}
	return result
}

// transaction is a batch under construction.
type transaction struct {
	b     []byte
	first uint32 // sequence number of the first operation
	what  []func() string
	owner []string
	last  int // where the last message starts
}

// opError is the refusal of one operation of a transaction.
type opError struct {
	owner string
	what  string
	err   unix.Errno
}

func (e *opError) Error() string { return fmt.Sprintf("%s: %v", e.what, e.err) }
func (e *opError) Unwrap() error { return e.err }

// begin starts a transaction. With a generation other than 0 the kernel refuses it (ERESTART) when its tables have
// changed since that generation.
func (c *conn) begin(generation uint32) *transaction {
	const batchGenID = 1 // NFNL_BATCH_GENID
	c.seq++
	t := &transaction{first: c.seq + 1}
	w := buffer{b: header(nil, unix.NFNL_MSG_BATCH_BEGIN, unix.NLM_F_REQUEST, c.seq, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)}
	if generation != 0 {
		w.u32(batchGenID, generation)
	}
	t.b = w.b
	finish(t.b, 0)
	return t
}

// generation is the number of transactions that the tables have seen.
func (c *conn) generation() (uint32, error) {
	c.seq++
	seq := c.seq
	b := header(nil, subsys|unix.NFT_MSG_GETGEN, unix.NLM_F_REQUEST, seq, unix.AF_UNSPEC, 0)
	finish(b, 0)
	if err := c.send(b); err != nil {
		return 0, err
	}
	var gen uint32
	var result error
	for done := false; !done; {
		err := c.receive(func(m message) {
			if m.seq != seq {
				return
			}
			done = true
			if m.typ == unix.NLMSG_ERROR {
				result = m.errno()
				return
			}
			if len(m.data) < 4 {
				return
			}
			attributes(m.data[4:], func(typ uint16, data []byte) {
				if typ == unix.NFTA_GEN_ID && len(data) == 4 {
					gen = binary.BigEndian.Uint32(data)
				}
			})
		})
		if err != nil {
			return 0, err
		}
	}
	return gen, result
}

// op adds one operation. owner and what say for whom and what it does, for the error.
func (c *conn) op(t *transaction, typ, flags uint16, f Family, owner string, what func() string, attrs func(*buffer)) (seq uint32) {
	c.seq++
	t.last = len(t.b)
	w := buffer{b: header(t.b, subsys|typ, unix.NLM_F_REQUEST|flags, c.seq, uint8(f), 0)}
	attrs(&w)
	t.b = w.b
	finish(t.b, t.last)
	t.what = append(t.what, what)
	t.owner = append(t.owner, owner)
	return c.seq
}

// commit sends the batch and waits for its result: nil, or an error that joins one *opError for each operation that
// was refused (nothing was done then). echo receives the rules that operations with NLM_F_ECHO made.
func (c *conn) commit(t *transaction, echo func(seq uint32, attrs []byte)) error {
	if len(t.what) == 0 {
		return nil
	}
	// Refused operations are always reported; of the accepted ones only the last answers, and it answers last.
	flags := binary.NativeEndian.Uint16(t.b[t.last+6:])
	binary.NativeEndian.PutUint16(t.b[t.last+6:], flags|unix.NLM_F_ACK)
	end := c.seq
	c.seq++
	at := len(t.b)
	t.b = header(t.b, unix.NFNL_MSG_BATCH_END, unix.NLM_F_REQUEST, c.seq, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)
	finish(t.b, at)
	if err := c.send(t.b); err != nil {
		return fmt.Errorf("send %d nf_tables operations: %w", len(t.what), err)
	}
	var errs []error
	for done := false; !done; {
		err := c.receive(func(m message) {
			switch {
			case m.seq < t.first-1 || m.seq > c.seq:
			case m.typ == unix.NLMSG_ERROR:
				i := int(m.seq) - int(t.first)
				if e := m.errno(); e != 0 && i >= 0 && i < len(t.what) {
					errs = append(errs, &opError{owner: t.owner[i], what: t.what[i](), err: e})
				} else if e != 0 { // the batch as a whole: no memory, no permission
					errs = append(errs, e)
					done = true
				}
				if m.seq == end {
					done = true
				}
			case m.typ == subsys|unix.NFT_MSG_NEWRULE && len(m.data) >= 4: // not the note on the new generation
				echo(m.seq, m.data[4:])
			}
		})
		if err != nil {
			return err
		}
	}
	return errors.Join(errs...)
}
