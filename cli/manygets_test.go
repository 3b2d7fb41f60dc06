package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
)

// Clients that come all at once get their files over a long link, with TLS, whether these come in
// an answer or by a path: none takes a server with much to do for a dead one, nor it them.
func TestManyGetsOverALongLink(t *testing.T) {
	testenv.LeaveOut(t, testenv.WithRace, "as many processes of that build take more memory than a small machine has")
	const gets = 100
	dirs := identities(t, "worker")
	root, out := t.TempDir(), t.TempDir()
	sizes := []int{20_000, 500_000, 2_000_000}
	for i, size := range sizes {
		write(t, filepath.Join(root, strconv.Itoa(i)), content(size, uint64(i)))
	}
	policy := write(t, filepath.Join(t.TempDir(), "policy"), []byte("allow worker read,list\n"))
	link := netns.LinkSpec{Delay: 10 * time.Millisecond, Rate: 1e9, Queue: 4 << 20}
	h := newHosts(t, link, root, []string{"--identity", dirs["server"], "--policy", policy},
		[]string{"--identity", dirs["worker"]})
	var wg sync.WaitGroup
	for i := range gets {
		wg.Go(func() {
			to := filepath.Join(out, strconv.Itoa(i))
			text, err := h.run("get", "server@"+h.addr+"/"+strconv.Itoa(i%len(sizes)), "-o", to)
			if err != nil {
				t.Errorf("get %d: %v: %s", i, err, text)
				return
			}
			b, err := os.ReadFile(to)
			if want := content(sizes[i%len(sizes)], uint64(i%len(sizes))); err != nil || !bytes.Equal(b, want) {
				t.Errorf("get %d: %d bytes that are not those of the file, %v", i, len(b), err)
			}
		})
	}
	wg.Wait()
}
