package store

import (
	"slices"
	"sort"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

const chunkLen = 256

// changeLog holds the retained changes of the keyspace in the order they were
// made; changes of one transaction follow each other and share a ModRevision.
//
// A copy of the struct is an immutable view: append writes only slots beyond
// every view's end, and trim leaves the shared chunks alone. That holds as
// long as only the newest copy is appended to.
type changeLog struct {
	chunks []*[chunkLen]*mvccpb.KeyValue
	start  int // slot of the first change in chunks[0]
	n      int
}

func (l *changeLog) append(kv *mvccpb.KeyValue) {
	i := l.start + l.n
	if i == len(l.chunks)*chunkLen {
		l.chunks = append(l.chunks, new([chunkLen]*mvccpb.KeyValue))
	}
	l.chunks[i/chunkLen][i%chunkLen] = kv
	l.n++
}

func (l *changeLog) at(i int) *mvccpb.KeyValue {
	i += l.start
	return l.chunks[i/chunkLen][i%chunkLen]
}

// seek returns the index of the first change of revision rev or later; l.n
// when there is none.
func (l *changeLog) seek(rev int64) int {
	return sort.Search(l.n, func(i int) bool { return l.at(i).ModRevision >= rev })
}

// trim drops the first i changes.
func (l *changeLog) trim(i int) {
	at := l.start + i
	l.chunks = slices.Clone(l.chunks[min(at/chunkLen, len(l.chunks)):])
	l.start = at % chunkLen
	l.n -= i
	if len(l.chunks) == 0 {
		l.start = 0
	}
}
