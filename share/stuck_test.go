package share

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/penstock-io/penstock/transfer"
)

// A peer that begins uploads and goes on with none of them keeps neither a name nor the room for
// others to itself.
func TestStuckUploadsGiveWay(t *testing.T) {
	ctx, root, file := testCtx(t), t.TempDir(), filepath.Join(t.TempDir(), "f")
	b := randomBytes(5, 100_000)
	write(t, file, b)
	s := serve(t, Options{Root: root, Writable: true})
	begin := func(p *transfer.Peer, i int) error {
		r := beginRequest{token: token{byte(i), byte(i >> 8), 1},
			claim: claim{fmt.Sprint("x", i), 1000, Tag{byte(i), byte(i >> 8), 1}}}
		_, err := p.Call(ctx, uploadService, r.append(nil))
		return err
	}
	var peers []*transfer.Peer // as many as it takes to have all the room
	for k := range maxUploads / maxUploadsOfOne {
		stuck := testNode(t, transfer.Options{Name: fmt.Sprint("stuck ", k)})
		p, err := stuck.Dial(ctx, s.node.Addrs()[0])
		if err != nil {
			t.Fatal(err)
		}
		peers = append(peers, p)
		for i := range maxUploadsOfOne {
			if err := begin(p, k*maxUploadsOfOne+i); err != nil {
				t.Fatal(err)
			}
		}
	}
	idle := func(d time.Duration) {
		s.uploads.mu.Lock()
		s.uploads.idle = d
		s.uploads.mu.Unlock()
	}
	for _, name := range []string{"x0", "y"} {
		idle(time.Hour)
		if _, err := Upload(ctx, s.c, file, name, UploadOptions{}); !errors.Is(err, ErrBusy) {
			t.Errorf("%s, while the others may still go on: %v", name, err)
		}
		idle(0)
		if _, err := Upload(ctx, s.c, file, name, UploadOptions{}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		same(t, filepath.Join(root, name), b)
		if name == "x0" { // its place is free now
			if err := begin(peers[0], maxUploads); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := len(s.Snapshot().Uploads); n != maxUploads-1 {
		t.Errorf("%d uploads are under way, expected that one of %d gave way", n, maxUploads)
	}
	for _, p := range peers {
		if err := p.Err(); err != nil {
			t.Error(err)
		}
	}
}
