package job

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// indexes is a set of completion indexes, as sorted intervals that neither
// overlap nor touch.
type indexes []interval

type interval struct{ first, last int }

// parseIndexes reads the form of status.completedIndexes, such as "1,3-5,7".
// Indexes from limit on, and what makes no sense, are left out.
func parseIndexes(s string, limit int) indexes {
	var out indexes
	for _, part := range strings.Split(s, ",") {
		from, to, ranged := strings.Cut(part, "-")
		first, err := strconv.Atoi(from)
		if err != nil || first < 0 {
			continue
		}
		last := first
		if ranged {
			if last, err = strconv.Atoi(to); err != nil || last < first {
				continue
			}
		}
		if first < limit {
			out = append(out, interval{first, min(last, limit-1)})
		}
	}
	return out.normal()
}

func (x indexes) normal() indexes {
	slices.SortFunc(x, func(a, b interval) int { return cmp.Compare(a.first, b.first) })
	var out indexes
	for _, i := range x {
		if n := len(out); n > 0 && i.first <= out[n-1].last+1 {
			out[n-1].last = max(out[n-1].last, i.last)
		} else {
			out = append(out, i)
		}
	}
	return out
}

// with returns the set with more in it. x is not changed.
func (x indexes) with(more ...int) indexes {
	out := slices.Clone(x)
	for _, i := range more {
		out = append(out, interval{i, i})
	}
	return out.normal()
}

func (x indexes) has(i int) bool {
	n, found := slices.BinarySearchFunc(x, i, func(v interval, i int) int { return cmp.Compare(v.first, i) })
	return found || n > 0 && x[n-1].last >= i
}

func (x indexes) len() int {
	n := 0
	for _, i := range x {
		n += i.last - i.first + 1
	}
	return n
}

// common is how many indexes are in both sets.
func (x indexes) common(y indexes) int {
	n := 0
	for _, a := range x {
		for _, b := range y {
			n += max(0, min(a.last, b.last)-max(a.first, b.first)+1)
		}
	}
	return n
}

func (x indexes) String() string {
	var b strings.Builder
	for n, i := range x {
		if n > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(i.first))
		switch {
		case i.last == i.first+1:
			b.WriteByte(',')
			b.WriteString(strconv.Itoa(i.last))
		case i.last > i.first:
			b.WriteByte('-')
			b.WriteString(strconv.Itoa(i.last))
		}
	}
	return b.String()
}
