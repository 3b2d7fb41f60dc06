package tcp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/testenv/fault"
	"github.com/penstock-io/penstock/path"
	"github.com/penstock-io/penstock/path/pathtest"
)

// asleep owns a path as a node does: it sleeps until the path's descriptor says that there is something to do. It returns the
// end of the operation with a token, or with token 0 goes on until ctx ends.
func asleep(ctx context.Context, p path.Path, token uint64) (path.Event, error) {
	w, err := path.NewWaiter()
	if err != nil {
		return path.Event{}, err
	}
	defer w.Close()
	var events [16]path.Event
	for {
		n, err := w.Wait(ctx, p, events[:], 0)
		if err != nil {
			return path.Event{}, err
		}
		for _, e := range events[:n] {
			switch {
			case e.Kind == path.EventDone && token != 0 && e.Token == token:
				return e, nil
			case e.Kind == path.EventDown:
				return e, e.Err
			}
		}
	}
}

// Large operations wait for the trials of congestion controls no longer than these may take, although nothing comes any more
// that would wake their owner: the connection for measuring has stalled, as the one of a peer that stopped does.
func TestMeasuringStalls(t *testing.T) {
	const size = 4 << 20
	for _, sealed := range []bool{false, true} {
		for _, kind := range []path.OpKind{path.Put, path.Get} {
			t.Run(fmt.Sprint(kind, sealed), func(t *testing.T) {
				ForgetMeasurements()
				defer ForgetMeasurements()
				from, to := region(t, size), region(t, size)
				pathtest.Fill(from.All().Bytes(), 7)
				ca, cb := configs()
				ca.Streams = 1
				at := uint64(helloSize)
				if sealed {
					ca.Secret, cb.Secret = aSecret(), aSecret()
					at += confirmSize
				}
				// Both ways, so that it meets whoever sends the payload, who is the one that measures.
				d, err := fault.NewProxyDriver(New(Options{}), fault.Plan{Rules: []fault.Rule{{Kind: fault.Stall, Dir: fault.Both, Conn: 2, At: fault.Exactly(at)}}})
				if err != nil {
					t.Fatal(err)
				}
				pa, pb, err := faulty(t, d, ca, cb)
				if err != nil {
					t.Fatal(err)
				}
				defer pa.Close()
				defer pb.Close()
				if len(pa.(*Path).fds) != 2 {
					t.Fatalf("%d connections; expected one for data and one for measuring", len(pa.(*Path).fds))
				}
				local, remote, rights := from, to, path.Write
				if kind == path.Get {
					local, remote, rights = to, from, path.Read
				}
				e, err := cb.Exports.Add(remote.All(), rights)
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				over := make(chan error, 1)
				serving, stop := context.WithCancel(ctx)
				go func() {
					_, err := asleep(serving, pb, 0)
					over <- err
				}()
				if _, err := pa.Post([]path.Op{{Kind: kind, Token: 1, Copies: []path.Copy{{Local: local.All(), Key: e.Key()}}}}); err != nil {
					t.Error(err)
				}
				done, err := asleep(ctx, pa, 1)
				stop()
				if err := <-over; !errors.Is(err, context.Canceled) {
					t.Errorf("the other side: %v", err)
				}
				if err != nil || done.Err != nil {
					t.Fatalf("%v, %v\nhere: %q\nthere: %q", err, done.Err, pa.Explain(), pb.Explain())
				}
				if !bytes.Equal(from.All().Bytes(), to.All().Bytes()) {
					t.Error("other bytes arrived")
				}
				if n := d.Counts()[fault.Stall]; n == 0 {
					t.Error("nothing stalled")
				}
			})
		}
	}
}
