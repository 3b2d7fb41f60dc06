package transfer

import (
	"crypto/sha256"
	"fmt"
	"testing"

	"github.com/penstock-io/penstock/transfer/path"
)

// BenchmarkDigest is a put with and without a digest; both sides hash on this machine.
func BenchmarkDigest(b *testing.B) {
	for _, size := range []int{64 << 10, 4 << 20, 256 << 20} {
		for _, digest := range []bool{false, true} {
			for _, name := range paths {
				b.Run(fmt.Sprintf("%s/%dKiB/digest=%v", name, size>>10, digest), func(b *testing.B) {
					p := newPair(b, Options{})
					p.ignore(b)
					src, dst := region(b, size), region(b, size)
					export(b, p.b, dst, "dst", path.Read|path.Write)
					copies := []path.Copy{lookup(b, p.ab, "dst").At(0, src.All())}
					b.SetBytes(int64(size))
					b.ReportAllocs()
					for b.Loop() {
						x, err := p.ab.Put(b.Context(), copies, PutOptions{Digest: digest, Paths: []string{name}})
						wait(b, x, err)
					}
				})
			}
		}
	}
	b.Run("sha256 alone", func(b *testing.B) {
		r := region(b, 4<<20)
		b.SetBytes(4 << 20)
		for b.Loop() {
			sha256.Sum256(r.All().Bytes())
		}
	})
}
