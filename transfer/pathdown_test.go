package transfer

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// A peer that closes in order is nothing to warn about.
func TestOrderlyEndIsNoWarning(t *testing.T) {
	for _, name := range paths {
		t.Run(name, func(t *testing.T) {
			var log lockedBuffer
			p := newPair(t, Options{Paths: []setup.Driver{over(name)},
				Logger: slog.New(slog.NewTextHandler(&log, nil))})
			p.ignore(t)
			export(t, p.b, region(t, 4096), "dst", path.Write)
			x, err := p.ab.Put(ctx(t), []path.Copy{lookup(t, p.ab, "dst").At(0, region(t, 4096).All())}, PutOptions{})
			wait(t, x, err)
			if err := p.b.Close(); err != nil {
				t.Fatal(err)
			}
			soon(t, p.ab.Gone(), "the end of the session")
			if err := p.a.Close(); err != nil {
				t.Fatal(err)
			}
			if s := log.String(); strings.Contains(s, "level=WARN") {
				t.Errorf("logged:\n%s", s)
			}
		})
	}
}
