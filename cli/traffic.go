package cli

import (
	"errors"
	"fmt"
	"time"

	"github.com/penstock-io/penstock/share"
)

// accessed reports what a peer has read or uploaded, when that ends.
func (v *server) accessed(a share.Access) {
	if !a.Ended {
		return
	}
	e := event{Event: "served", Peer: nameOf(a.Peer), Name: a.Name, Action: "get", Path: a.Path, Bytes: &a.Good,
		From: a.From}
	took := time.Since(a.Begun)
	e.seconds(took)
	how := "fetched"
	if a.Upload {
		e.Action, how = "put", "put"
	}
	who, what := share.Printable(e.Peer), share.Printable(a.Name)
	var text string
	if a.Whole {
		text = fmt.Sprintf("peer %s: %s %s, %s", who, how, what, formatBytes(a.Size))
		if a.From > 0 {
			text += fmt.Sprintf(", resumed at %s", formatBytes(a.From))
		}
		text += " in " + formatTime(took)
	} else {
		e.Error = a.Err.Error()
		why := escapeControls(e.Error)
		if errors.Is(a.Err, share.ErrGaveUp) {
			why = "the peer gave up"
		}
		text = fmt.Sprintf("peer %s: %s NOT COMPLETELY %s, %s of %s: %s", who, what, how, formatBytes(a.Good),
			formatBytes(a.Size), why)
	}
	if a.Path != "" {
		text += " over " + share.Printable(a.Path)
	}
	v.d.event(e)
	v.d.print("%s", text)
}

// removed reports what a peer has removed.
func (v *server) removed(r share.Removed) {
	v.d.event(event{Event: "served", Peer: nameOf(r.Peer), Name: r.Name, Action: "remove", Bytes: &r.Size})
	v.d.print("peer %s: removed %s, %s", share.Printable(nameOf(r.Peer)), share.Printable(r.Name), formatBytes(r.Size))
}

// drain waits until no transfer is under way, or the time for that is over.
func (v *server) drain() {
	n, changed := v.share.UnderWay()
	if n == 0 {
		v.d.print("ending")
		return
	}
	v.d.print("ending: waiting up to %v for %s; Ctrl-C again ends at once", v.o.grace,
		count(n, "transfer", "transfers"))
	t := time.NewTimer(v.o.grace)
	defer t.Stop()
	for n > 0 {
		select {
		case <-changed:
			n, changed = v.share.UnderWay()
		case <-t.C:
			v.d.print("ending although %s did not end in %v", count(n, "transfer", "transfers"), v.o.grace)
			return
		}
	}
}
