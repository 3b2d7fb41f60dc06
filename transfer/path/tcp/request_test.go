package tcp

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/path"
)

// A request names blocks of many exports. One that is revoked fails the operation, whether it is
// asked for afterwards or its bytes are on their way, of which the peer's path keeps a copy then;
// the others' bytes come.
func TestRequestOfManyExports(t *testing.T) {
	const blocks, size = 40, 1000
	for _, when := range []string{"never", "before", "between", "on the way"} {
		a, b := newNode(t, 1<<20, 8, 1, true), newNode(t, 1<<20, 8, 1, true)
		op := path.Op{Kind: path.Get}
		memory := b.region.All().Bytes()
		for i := range memory {
			memory[i] = byte(i * 7 >> 3)
		}
		for i := range uint64(blocks) {
			key := b.export.Key()
			if i%2 > 0 {
				key = b.other.Key()
			}
			op.Copies = append(op.Copies, path.Copy{Local: mem.Span{Region: a.region, Off: i * size, Len: size},
				Key: key, RemoteOff: i * 2 * size})
		}
		if n, err := a.post([]path.Op{op}); n != 1 {
			t.Fatal(err)
		}
		revoke := func(at string) {
			if at == when {
				b.exports.Revoke(b.other)
				b.fence(b.other.Key())
			}
		}
		revoke("before")
		out := a.emit(a.streams[0], 1<<20)
		if n, err := b.feed(b.streams[0], out); n != len(out) || err != nil {
			t.Fatal(n, err)
		}
		a.streams[0].out.gone(len(out))
		if a.requests != 1 || b.serveSmall.bn != blocks {
			t.Errorf("%s: %d requests for %d blocks, expected 1 for %d", when, a.requests, b.serveSmall.bn, blocks)
		}
		revoke("between")
		b.fill(b.streams[0], true)
		want := bytes.Clone(memory)
		if when == "on the way" {
			revoke(when)
			for i := range uint64(blocks) { // the memory of what was revoked is its owner's again
				if i%2 > 0 {
					clear(memory[i*2*size:][:size])
				}
			}
		}
		shuttle(t, a, b, func(n int) int { return n / 2 })
		events := a.events()
		refused := when == "before" || when == "between"
		if len(events) != 1 || refused != (events[0].Err != nil) || refused &&
			!errors.Is(events[0].Err, path.ErrRevoked) {
			t.Errorf("%s: %+v", when, events)
		}
		for i := range uint64(blocks) {
			got := a.region.All().Bytes()[i*size:][:size]
			if !refused && !bytes.Equal(got, want[i*2*size:][:size]) || refused && i > 0 && slices.Max(got) > 0 {
				t.Errorf("%s: block %d is not as expected", when, i)
				break
			}
		}
		if open := len(a.ops) - len(a.free); open != 0 || a.requests != 0 || a.wanted != 0 || b.serveSmall.n != 0 ||
			b.serveSmall.bn != 0 {
			t.Errorf("%s: %d operations, %d requests and %d blocks are left, %d at the peer", when, open, a.requests,
				a.wanted, b.serveSmall.n)
		}
	}
}
