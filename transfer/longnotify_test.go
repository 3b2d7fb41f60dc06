package transfer

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/penstock-io/penstock/internal/budget"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/inbox"
	"github.com/penstock-io/penstock/transfer/path"
)

// Messages of all lengths around the limits arrive whole, once, with their tag.
func TestLongNotifications(t *testing.T) {
	p := newPair(t, Options{})
	got := make(chan Incoming, 1)
	if _, err := p.b.OnTag(9, func(in Incoming) { got <- in }); err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{MaxPayload, MaxPayload + 1, longPart, longPart + 1, 3 * longPart, MaxNotify - 1,
		MaxNotify} {
		msg := make([]byte, n)
		for i := range msg {
			msg[i] = byte(i*31 + i>>9)
		}
		x, err := p.ab.Notify(ctx(t), msg, PutOptions{Tag: 9})
		wait(t, x, err)
		if in := <-got; in.ID != x.ID() || in.Kind != path.Notify || !bytes.Equal(in.Msg, msg) {
			t.Errorf("%d bytes: %v %v, %d bytes", n, in.ID, in.Kind, len(in.Msg))
		}
		addsUp(t, x)
	}
	if _, err := p.ab.Notify(ctx(t), make([]byte, MaxNotify+1), PutOptions{}); !errors.Is(err, path.ErrTooLarge) {
		t.Errorf("too long: %v", err)
	}
	if _, err := p.ab.Put(ctx(t), nil, PutOptions{Msg: make([]byte, MaxPayload+1)}); !errors.Is(err, path.ErrTooLarge) {
		t.Errorf("too long for a put: %v", err)
	}
}

// A receiver that does not take its messages bounds them, and takes more afterwards.
func TestLongNotificationsWait(t *testing.T) {
	p := newPair(t, Options{})
	gate, got := make(chan struct{}), make(chan int, 64)
	p.b.opts.OnTransfer = func(in Incoming) { <-gate; got <- len(in.Msg) }
	sent, msg := 0, make([]byte, MaxNotify)
	for {
		x, err := p.ab.Notify(ctx(t), msg, PutOptions{})
		if err == nil {
			err = x.Wait(ctx(t))
		}
		if errors.Is(err, control.Busy) {
			break
		}
		if sent++; err != nil || sent > 16 {
			t.Fatalf("after %d messages: %v", sent, err)
		}
	}
	if sent < inbox.MaxLong/MaxNotify {
		t.Errorf("%d messages were taken", sent)
	}
	close(gate)
	for range sent {
		if n := <-got; n != MaxNotify {
			t.Errorf("%d bytes", n)
		}
	}
	x, err := p.ab.Notify(ctx(t), msg, PutOptions{})
	wait(t, x, err)
	<-got
}

// What a peer cannot have sent is refused, and costs no more than inbox.MaxParts messages.
func TestLongNotificationsAreChecked(t *testing.T) {
	p := newPair(t, Options{})
	got := make(chan Incoming, 8)
	p.b.opts.OnTransfer = func(in Incoming) { got <- in }
	part := func(kind path.OpKind, number uint64, total, off uint32, n int) error {
		b := inbox.Header{Kind: kind, Tag: 0, Number: number, Bytes: 0}.Append(nil)
		b = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(b, total), off)
		_, err := p.ab.Call(ctx(t), longService, append(b, make([]byte, n)...))
		return err
	}
	const own, half, size = 1 << 40, MaxPayload, 2 * MaxPayload
	for what, err := range map[string]error{
		"another kind": part(path.Put, own, size, 0, half), "too long": part(path.Notify, own, MaxNotify+1, 0, half),
		"no bytes":                part(path.Notify, own, size, 0, 0),
		"beyond the end":          part(path.Notify, own, size, half, half+1),
		"overflow":                part(path.Notify, own, size, 1<<32-1, 8),
		"no begin":                part(path.Notify, own, size, half, half),
		"short enough for a path": part(path.Notify, own, MaxPayload, 0, MaxPayload),
		"of length 0":             part(path.Notify, own, 0, 0, 8),
	} {
		if !errors.Is(err, control.BadRequest) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for i := range uint64(inbox.MaxParts + 1) { // the first is forgotten
		if err := part(path.Notify, own+i, size, 0, half); err != nil {
			t.Fatal(err)
		}
	}
	if err := part(path.Notify, own, size, half, half); !errors.Is(err, control.BadRequest) {
		t.Errorf("the oldest of too many: %v", err)
	}
	if err := part(path.Notify, own+1, size+1, half, half); !errors.Is(err, control.BadRequest) {
		t.Errorf("another total: %v", err)
	}
	if err := part(path.Notify, own+1, size, half, half); err != nil || len((<-got).Msg) != size {
		t.Errorf("the second part: %v", err)
	}
	if err := part(path.Notify, own+1, size, 0, size); !errors.Is(err, control.BadRequest) {
		t.Errorf("a repetition: %v", err)
	}
	p.ba.rights = identity.List
	if err := part(path.Notify, own+9, size, 0, size); !errors.Is(err, control.NotPermitted) {
		t.Errorf("without a right: %v", err)
	}
}

// What a node holds of a peer's long messages is charged to the peer's principal: a message from
// its first part until the application has it.
func TestLongNotificationsAreCharged(t *testing.T) {
	p := newPair(t, Options{})
	gate, entered, taken := make(chan struct{}), make(chan struct{}, 8), make(chan struct{}, 8)
	p.b.opts.OnTransfer = func(Incoming) { entered <- struct{}{}; <-gate; taken <- struct{}{} }
	begin := func(number uint64) error {
		b := inbox.Header{Kind: path.Notify, Tag: 0, Number: number, Bytes: 0}.Append(nil)
		b = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(b, MaxNotify), 0)
		_, err := p.ab.Call(ctx(t), longService, append(b, 1))
		return err
	}
	held := func() uint64 {
		p.ba.mu.Lock()
		defer p.ba.mu.Unlock()
		return p.ba.heldBytes
	}
	full := p.b.budget
	p.b.budget = budget.New(budget.Amounts{budget.Memory: MaxNotify / 2})
	if err := begin(1 << 41); !errors.Is(err, control.Busy) {
		t.Errorf("beyond the budget: %v, expected Busy", err)
	}
	p.b.budget = full
	for range 3 { // the handler has the first, two wait
		x, err := p.ab.Notify(ctx(t), make([]byte, MaxNotify), PutOptions{})
		wait(t, x, err)
	}
	<-entered
	if n := held(); n < 2*MaxNotify {
		t.Errorf("%d bytes are charged for two messages that wait", n)
	}
	for i := range uint64(inbox.MaxParts + 2) {
		if err := begin(1<<40 + i); err != nil {
			t.Fatal(err)
		}
	}
	if n := held(); n < (2+inbox.MaxParts)*MaxNotify || n > (3+inbox.MaxParts)*MaxNotify {
		t.Errorf("%d bytes are charged for two messages that wait and %d that are not complete", n, inbox.MaxParts)
	}
	close(gate)
	for range 3 {
		<-taken
	}
	p.ab.Close()
	<-p.ba.gone
	if n := held(); n != 0 {
		t.Errorf("%d bytes are charged after the end", n)
	}
}

// A message on its way ends with its transfer's cancellation, and with the session.
func TestLongNotificationEnds(t *testing.T) {
	p := newPair(t, Options{})
	x, err := p.ab.Notify(ctx(t), make([]byte, MaxNotify), PutOptions{})
	if err != nil {
		t.Fatal(err)
	}
	x.Cancel()
	if err := x.Wait(ctx(t)); err != nil && !errors.Is(err, path.ErrCanceled) {
		t.Error(err)
	}
	p.ab.Close()
	if _, err := p.ab.Notify(ctx(t), make([]byte, MaxNotify), PutOptions{}); !errors.Is(err, ErrClosed) {
		t.Errorf("after the session: %v", err)
	}
}
