package transfer

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"

	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// A remote export is read and written by slices of Go, over each path, across more than one bounce
// buffer.
func TestReadAtWriteAt(t *testing.T) {
	for _, name := range paths {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, Options{Paths: []setup.Driver{over(name)}})
			const size = 2*bounceSize + 3<<12
			r := region(t, size)
			export(t, p.b, r, "x", path.Read|path.Write)
			rem := lookup(t, p.ab, "x")
			want := make([]byte, size)
			for i := range want {
				want[i] = byte(i*7 + i>>11)
			}
			if n, err := rem.WriteAt(want[100:], 100); n != size-100 || err != nil {
				t.Fatalf("%d bytes, %v", n, err)
			}
			if n, err := io.NewOffsetWriter(rem, 0).Write(want[:100]); n != 100 || err != nil {
				t.Fatalf("%d bytes, %v", n, err)
			}
			if !bytes.Equal(r.All().Bytes(), want) {
				t.Fatal("the export has other bytes")
			}
			got := make([]byte, size)
			if n, err := rem.ReadAt(got, 0); n != size || err != nil || !bytes.Equal(got, want) {
				t.Fatalf("%d bytes, %v", n, err)
			}
			if n, err := rem.ReadAt(got, size-10); n != 10 || err != io.EOF || !bytes.Equal(got[:10], want[size-10:]) {
				t.Errorf("over the end: %d, %v", n, err)
			}
			if err := iotest.TestReader(io.NewSectionReader(rem, 1000, 200), want[1000:1200]); err != nil {
				t.Error(err)
			}
			for _, off := range []int64{-1, size + 1} {
				if _, err := rem.ReadAt(got, off); !errors.Is(err, path.ErrBounds) {
					t.Errorf("read at %d: %v", off, err)
				}
			}
			if n, err := rem.WriteAt(want[:11], size-10); n != 0 || !errors.Is(err, path.ErrBounds) {
				t.Errorf("write over the end: %d, %v", n, err)
			}
			if used := p.a.pool.Stats().InUse; used != 0 {
				t.Errorf("%d bytes of bounce buffers are in use", used)
			}
			p.ab.Close()
			if n, err := rem.ReadAt(got, 0); n != 0 || !errors.Is(err, ErrClosed) {
				t.Errorf("after the session: %d, %v", n, err)
			}
		})
	}
}
