package store

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
)

// withChecksums returns b with right checksums, as far as b has the form of
// a snapshot.
func withChecksums(b []byte) []byte {
	b = bytes.Clone(b)
	const head = len(snapshotMagic) + 4
	if len(b) < head+4 {
		return b
	}
	sum := crc32.Update(0, castagnoli, b[:head])
	binary.BigEndian.PutUint32(b[head:], sum)
	for at := head + 4; at+9 <= len(b); {
		n := int(binary.BigEndian.Uint32(b[at+1:]))
		if n > len(b)-at-9 {
			break
		}
		sum = crc32.Update(sum, castagnoli, b[at:at+5+n])
		binary.BigEndian.PutUint32(b[at+5+n:], sum)
		at += 9 + n
	}
	return b
}
