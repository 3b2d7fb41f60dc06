package transfer

import (
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock/transfer/identity"
)

// A node warns of its certificate before the end and after it, and a client then says that the
// certificate of the server has expired.
func TestCertificateWarns(t *testing.T) {
	ca := authority(t)
	var later atomic.Int64
	issued := func(name string, valid time.Duration) *identity.Identity {
		id, err := ca.Issue(name, identity.IssueOptions{Valid: valid,
			Options: identity.Options{Clock: func() time.Time {
				return time.Now().Add(time.Duration(later.Load()))
			}}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(id.Close)
		return id
	}
	var log lockedBuffer
	server := open(t, Options{Identity: issued("server", 24*time.Hour), Policy: allRights{}, Listen: []string{loopback},
		Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if s := log.String(); !strings.Contains(s, "level=WARN") || !strings.Contains(s, "ends on") ||
		!strings.Contains(s, "pair renew") {
		t.Errorf("a day before the end the log says %q", s)
	}
	client := open(t, Options{Identity: issued("client", 100*time.Hour)})
	if _, err := client.Dial(ctx(t), server.Addrs()[0]); err != nil {
		t.Fatal(err)
	}
	later.Store(int64(25 * time.Hour))
	_, err := client.Dial(ctx(t), server.Addrs()[0])
	if !errors.Is(err, identity.ErrExpired) || !strings.Contains(err.Error(), "the peer's certificate") {
		t.Errorf("after the end of the server's certificate: %v", err)
	}
	for end := ctx(t); !strings.Contains(log.String(), "has ended"); { // after the handshake has failed there too
		select {
		case <-time.After(time.Millisecond):
		case <-end.Done():
			t.Fatalf("after the end the log says %q", log.String())
		}
	}
}
