package transfer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"testing"

	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/path"
	"pgregory.net/rapid"
)

// Digests of several requests against a model: whatever a peer asks, in whatever order, it gets the
// SHA-256 of exactly the bytes that it may read, or an error that ends that digest and no other.
func TestDigestModel(t *testing.T) {
	p := newPair(t, Options{})
	src := region(t, 4096)
	fill(src, 51)
	all := src.All().Bytes()
	ro, rw := export(t, p.b, src, "ro", path.Read), export(t, p.b, src, "rw", path.Read|path.Write)
	wo := export(t, p.b, src, "wo", path.Write)
	rapid.Check(t, func(rt *rapid.T) {
		model := map[byte][]byte{} // what was hashed until now, by id
		rt.Repeat(map[string]func(*rapid.T){
			"ask": func(rt *rapid.T) {
				id := rapid.ByteRange(1, 4).Draw(rt, "id")
				q := &control.Digest{ID: [16]byte{id}, Last: rapid.IntRange(0, 3).Draw(rt, "last") == 0}
				have, open := model[id]
				switch rapid.IntRange(0, 5).Draw(rt, "at") {
				case 0: // again
				case 1:
					q.At = rapid.Uint64Range(1, 100).Draw(rt, "anywhere")
				default:
					q.At = uint64(len(have))
				}
				var want error
				var sum []byte
				switch {
				case q.At == 0:
				case !open:
					want = control.NotFound
				case q.At != uint64(len(have)):
					want = control.BadRequest
				default:
					sum = bytes.Clone(have)
				}
				for range rapid.IntRange(0, 3).Draw(rt, "blocks") {
					off := rapid.Uint64Range(0, 4096).Draw(rt, "off")
					n := rapid.Uint64Range(0, 4096-off).Draw(rt, "len")
					b := control.Block{Off: off, Len: n}
					var bad error
					switch rapid.IntRange(0, 9).Draw(rt, "export") {
					case 0:
						b.Key, bad = wo.Key(), path.ErrRights
					case 1:
						b.Key, b.Len, bad = ro.Key(), 4097-off, path.ErrBounds
					case 2, 3, 4:
						b.Key = rw.Key()
					default:
						b.Key = ro.Key()
					}
					q.Blocks = append(q.Blocks, b)
					if want == nil {
						if want = bad; bad == nil {
							sum = append(sum, all[off:off+n]...)
						}
					}
				}
				r, err := p.ab.request(context.Background(), q)
				if want != nil {
					if !errors.Is(err, want) {
						rt.Fatalf("%+v: %v, expected %v", q, err, want)
					}
					delete(model, id)
					return
				}
				if err != nil {
					rt.Fatal(err)
				}
				a, err := control.Parse[control.DigestSum](r.Body)
				if err != nil || a.Bytes != uint64(len(sum)) || a.Sum != sha256.Sum256(sum) {
					rt.Fatalf("%+v: %d bytes, sum %x, %v; expected %d and %x", q, a.Bytes, a.Sum, err, len(sum),
						sha256.Sum256(sum))
				}
				if q.Last {
					delete(model, id)
				} else {
					model[id] = sum
				}
			},
		})
		for id := range model {
			if _, err := p.ab.request(context.Background(),
				&control.Digest{ID: [16]byte{id}, At: uint64(len(model[id])), Last: true}); err != nil {
				rt.Fatal(err)
			}
		}
	})
	settled(t, src, 3)
}
