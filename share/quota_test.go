package share

import (
	"errors"
	"fmt"
	"testing"

	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
)

// TestPartialUploadsCount has a peer begin many uploads, vouch for what lies there, and give them up: what stays of them counts
// against the number of files.
func TestPartialUploadsCount(t *testing.T) {
	ctx, root := testCtx(t), t.TempDir()
	s := serve(t, Options{Root: root, Writable: true, MaxFiles: 4})
	kept := 0
	for i := range 12 {
		r := beginRequest{token: token{byte(i)}, claim: claim{fmt.Sprint("x", i), 1, Tag{1}}}
		b, err := s.peer.Call(ctx, uploadService, r.append(nil))
		if errors.Is(err, control.OverBudget) {
			continue
		}
		a, ok := parseBeginAnswer(b)
		if err != nil || !ok || a.state != stateReady {
			t.Fatalf("%x, %v", b, err)
		}
		if _, err := s.peer.Call(ctx, uploadService, appendVerified(nil, a.id, 1)); err != nil {
			t.Fatal(err)
		}
		if _, err := s.peer.Call(ctx, uploadService, appendEnd(nil, a.id)); err != nil {
			t.Fatal(err)
		}
		kept++
	}
	if kept != 4 {
		t.Errorf("%d partial files are kept by a share of at most 4", kept)
	}
	// One that is there can be gone on with.
	r := beginRequest{token: token{99}, claim: claim{"x0", 1, Tag{1}}}
	if _, err := s.peer.Call(ctx, uploadService, r.append(nil)); err != nil {
		t.Error(err)
	}
}

// TestUploadIsNotTakenOver has another peer begin an upload of the same name, size and tag, as a second worker with the same file
// does: the one that is under way goes on.
func TestUploadIsNotTakenOver(t *testing.T) {
	ctx, root := testCtx(t), t.TempDir()
	s := serve(t, Options{Root: root, Writable: true})
	other, err := testNode(t, transfer.Options{Name: "other"}).Dial(ctx, s.node.Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	r := beginRequest{token: token{1}, claim: claim{"x", chunkSize, Tag{1}}}
	b, err := s.peer.Call(ctx, uploadService, r.append(nil))
	if err != nil {
		t.Fatal(err)
	}
	a, _ := parseBeginAnswer(b)
	r.token = token{2}
	if _, err := other.Call(ctx, uploadService, r.append(nil)); !errors.Is(err, control.Busy) {
		t.Errorf("the same file of another peer: %v", err)
	}
	if _, err := s.peer.Call(ctx, uploadService, appendVerified(nil, a.id, chunkSize)); err != nil {
		t.Errorf("the upload under way: %v", err)
	}
}

// TestOnePeerLeavesRoom has one peer begin uploads until it is refused: another one can still begin one.
func TestOnePeerLeavesRoom(t *testing.T) {
	ctx, root := testCtx(t), t.TempDir()
	s := serve(t, Options{Root: root, Writable: true})
	other, err := testNode(t, transfer.Options{Name: "other"}).Dial(ctx, s.node.Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; ; i++ {
		r := beginRequest{token: token{1, byte(i)}, claim: claim{fmt.Sprint("x", i), 1, Tag{1}}}
		_, err := s.peer.Call(ctx, uploadService, r.append(nil))
		if errors.Is(err, control.Busy) {
			break
		}
		if err != nil || i > 1000 {
			t.Fatal(i, err)
		}
	}
	r := beginRequest{token: token{2}, claim: claim{"y", 1, Tag{1}}}
	if _, err := other.Call(ctx, uploadService, r.append(nil)); err != nil {
		t.Errorf("another peer: %v", err)
	}
}
