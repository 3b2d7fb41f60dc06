package tcp

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// A file that is truncated while it is served takes the path down and not the process, whichever
// call meets the missing pages first.
func TestTruncatedWhileServed(t *testing.T) {
	const size = 8 << 20
	for name, meet := range map[string]func(p *Path){
		"Poll":  func(p *Path) { p.Poll(make([]path.Event, 1)) },
		"Arm":   func(p *Path) { p.Arm() },
		"Close": func(p *Path) { p.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "served")
			if err := os.WriteFile(file, make([]byte, size), 0o600); err != nil {
				t.Fatal(err)
			}
			src, err := mem.AdoptFile(file)
			if err != nil {
				t.Fatal(err)
			}
			defer src.Close()
			dst, err := mem.Alloc(mem.Options{Size: size})
			if err != nil {
				t.Fatal(err)
			}
			defer dst.Close()
			xs := new(path.Exports)
			e, err := xs.Add(src.All(), path.Read)
			if err != nil {
				t.Fatal(err)
			}
			a, b := dialPair(t, Options{CongestionControl: "reno"}, setup.Config{Rights: path.Read | path.Write,
				Exports: new(path.Exports)}, setup.Config{Rights: path.Read | path.Write, Exports: xs})
			defer a.Close()
			defer b.Close()
			if n, err := a.Post([]path.Op{{Kind: path.Get,
				Copies: []path.Copy{{Local: dst.All(), Key: e.Key()}}}}); n != 1 {
				t.Fatal(err)
			}
			for b.serveBig.n == 0 { // until it has read the request
				b.receive(true)
			}
			if err := os.Truncate(file, 0); err != nil {
				t.Fatal(err)
			}
			meet(b)
			if !errors.Is(b.err, mem.ErrFault) || !errors.Is(b.err, path.ErrDown) {
				t.Errorf("the path is down: %v", b.err)
			}
		})
	}
}
