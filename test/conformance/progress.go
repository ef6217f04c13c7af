package main

import (
	"bufio"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"
)

// progress copies ginkgo's verbose output to a log, and prints a line each time a test has ended, and a sign of life a
// minute when none has.
type progress struct {
	out      io.Writer
	total    int
	done     int
	failed   int
	streamed bool // one process: the name comes before the test, and its end after; else the end comes first

	began   time.Time
	name    string // streamed: of the test that runs
	pending string // not streamed: how the test ended whose name comes next
	said    time.Time
}

// ended is the line of ginkgo's that begins the report of a test that ran: "• [1.234 seconds]", "• [FAILED] [1.234
// seconds]". A test that skipped itself begins with "S [SKIPPED]".
var ended = regexp.MustCompile(`^(?:•|S) (?:\[([A-Z]+)!?\] )?\[([0-9.]+) seconds\]`)

// line takes one line of ginkgo's.
func (p *progress) line(l string) {
	if m := ended.FindStringSubmatch(l); m != nil {
		verdict := "ok"
		if m[1] != "" {
			verdict = m[1]
		}
		if seconds, _, ok := strings.Cut(m[2], "."); ok {
			verdict += " " + seconds + " s"
		}
		if p.streamed {
			p.tell(verdict, p.name)
		} else {
			p.pending = verdict
		}
		return
	}
	if strings.HasPrefix(l, "[sig-") {
		if p.pending != "" {
			p.tell(p.pending, l)
			p.pending = ""
		} else {
			p.name = l
		}
	}
}

func (p *progress) tell(verdict, name string) {
	p.done++
	if !strings.HasPrefix(verdict, "ok") && !strings.HasPrefix(verdict, "SKIPPED") {
		p.failed++
	}
	if before, _, ok := strings.Cut(name, conformanceTag); ok {
		name = strings.TrimSpace(before)
	}
	fmt.Fprintf(p.out, "[%5.0f s] %d of %d, %d failed: %s: %s\n", time.Since(p.began).Seconds(), p.done, p.total, p.failed, verdict, name)
	p.said = time.Now()
}

// follow reads ginkgo's output to its end.
func (p *progress) follow(r io.Reader, log io.Writer) error {
	p.began, p.said = time.Now(), time.Now()
	lines := make(chan string)
	var err error
	go func() {
		defer close(lines)
		b := bufio.NewReader(r)
		for {
			l, rerr := b.ReadString('\n')
			if l != "" {
				lines <- l
			}
			if rerr != nil {
				if rerr != io.EOF {
					err = rerr
				}
				return
			}
		}
	}()
	alive := time.NewTicker(10 * time.Second)
	defer alive.Stop()
	var logErr error
	for {
		select {
		case l, ok := <-lines:
			if !ok {
				if err == nil {
					err = logErr
				}
				return err
			}
			if _, werr := io.WriteString(log, l); werr != nil && logErr == nil {
				logErr = werr
			}
			p.line(strings.TrimRight(l, "\n"))
		case <-alive.C:
			if time.Since(p.said) >= time.Minute {
				fmt.Fprintf(p.out, "[%5.0f s] %d of %d, %d failed: still running\n", time.Since(p.began).Seconds(), p.done, p.total, p.failed)
				p.said = time.Now()
			}
		}
	}
}
