package transfer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/path"
)

const firstRole = "first "

// BenchmarkFirstPut is the first put of a process over a path: 4 KiB from a process that has just
// begun into another one that has just begun, with the path not set up. It reports the median, and
// that of the stages of the transfer.
func BenchmarkFirstPut(b *testing.B) {
	for _, name := range paths {
		b.Run(name, func(b *testing.B) {
			var all []Times
			for b.Loop() {
				server := startChild(b, "server")
				cmd := exec.Command(os.Args[0])
				cmd.Env, cmd.Stderr = append(os.Environ(), childEnv+"="+firstRole+name+" "+server.addr), os.Stderr
				out, err := cmd.Output()
				var x Times
				if err = errors.Join(err, json.Unmarshal(out, &x)); err != nil {
					b.Fatal(err)
				}
				server.kill()
				all = append(all, x)
			}
			median := func(unit string, of func(*Times) time.Duration) {
				slices.SortFunc(all, func(x, y Times) int { return int(of(&x) - of(&y)) })
				b.ReportMetric(float64(of(&all[len(all)/2]).Microseconds()), unit)
			}
			b.ReportMetric(0, "ns/op") // processes that begin and end
			median("µs", func(t *Times) time.Duration { return t.Total })
			median("open-µs", func(t *Times) time.Duration { return t.Open })
			median("transfer-µs", func(t *Times) time.Duration { return t.Transfer })
		})
	}
}

// runFirstChild is the process that puts: it prints the Times of one put.
func runFirstChild(role string) error {
	via, addr, _ := strings.Cut(role, " ")
	ctx := context.Background()
	r, err := mem.Alloc(mem.Options{Size: 4096})
	if err != nil {
		return err
	}
	n, err := Open(ctx, Options{Anonymous: identity.All, Name: "first"})
	if err != nil {
		return err
	}
	defer n.Close()
	p, err := n.Dial(ctx, addr)
	if err != nil {
		return err
	}
	rem, err := p.Lookup(ctx, "child")
	if err != nil {
		return err
	}
	t, err := p.Put(ctx, []path.Copy{rem.At(0, r.All())}, PutOptions{Paths: []string{via}})
	if err == nil {
		err = t.Wait(ctx)
	}
	if err != nil {
		return fmt.Errorf("first put over %s: %w", via, err)
	}
	return json.NewEncoder(os.Stdout).Encode(t.Explain().Times)
}
