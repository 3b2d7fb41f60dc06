package cli

import (
	"bytes"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv/proc"
	"github.com/penstock-io/penstock/transfer/observe"
	"pgregory.net/rapid"
)

// crowded is a snapshot with so many peers, each with a path and an export, and the one before it.
func crowded(peers int) (now, last *observe.Snapshot) {
	at := func(uptime float64) *observe.Snapshot {
		s := &observe.Snapshot{Node: observe.NodeStatus{Name: "server", Instance: "1", UptimeSeconds: uptime,
			Addresses: []string{"tcp://a", "tcp://b"}}}
		for _, k := range []string{"get", "notify", "put"} {
			s.Totals = append(s.Totals, observe.KindTotals{Kind: k, Bytes: uint64(uptime * 1e6)})
		}
		for i := range peers {
			s.Peers = append(s.Peers, observe.PeerStatus{ID: uint64(i),
				Name: fmt.Sprintf("worker-%d-%s", i, strings.Repeat("long ", 20)), Address: "tcp://10.1.2.3:45678",
				BytesIn: uint64(999.9e6 * uptime), BytesOut: uint64(999.9e6 * uptime),
				Paths: []observe.PathStatus{{Path: "tcp"}}})
			s.Exports = append(s.Exports, observe.ExportStatus{Name: strings.Repeat("name/", 30)})
		}
		return s
	}
	return at(12), at(10)
}

func draw(now, last *observe.Snapshot, width, height int) []string {
	var b bytes.Buffer
	(&screen{w: &b, width: width, height: height, s: now, r: rates(now, last)}).print()
	return strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
}

// On 80 columns and 24 lines the peers and their rates come first, then the totals, and what there
// is no room for is counted.
func TestStatusScreen(t *testing.T) {
	now, last := crowded(40)
	lines := draw(now, last, 80, 23)
	text := strings.Join(lines, "\n")
	want := regexp.MustCompile(`(?s)^node server .*\npeers\n  # +name +in rate +out rate .*\n  0 +worker\S.* 999\.9 MB/s +999\.9 MB/s.*  \.\.\. and (\d+) more\n.*those of its peers\n  kind +rate .*\n  get +1\.0 MB/s .*\n  put .*` +
		`\n\.\.\. and more: 40 paths, 40 exports$`)
	m := want.FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("it shows\n%s", text)
	}
	if more, _ := strconv.Atoi(m[1]); strings.Count(text, "  worker-")+strings.Count(text, "  worker..")+more != 40 {
		t.Errorf("%d of 40 peers are said to be missing in\n%s", more, text)
	}
	if len(lines) != 23 {
		t.Errorf("%d lines:\n%s", len(lines), text)
	}
}

// However small the terminal is: never more lines than it has, and none wider.
func TestStatusScreenFits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now, last := crowded(rapid.IntRange(0, 60).Draw(t, "peers"))
		now.Omitted.Peers = rapid.IntRange(0, 60).Draw(t, "omitted")
		width, height := rapid.IntRange(1, 200).Draw(t, "width"), rapid.IntRange(1, 80).Draw(t, "height")
		lines := draw(now, last, width, height)
		if len(lines) > height {
			t.Fatalf("%d lines of %d", len(lines), height)
		}
		for _, l := range lines {
			if columns(l) > width {
				t.Fatalf("%d columns of %d: %q", columns(l), width, l)
			}
		}
	})
}

// The program asks its terminal how large it is.
func TestStatusWatchOnTerminal(t *testing.T) {
	n := busyNode(t, "worker")
	spec := program("status", n.Addrs()[0], "--watch", "--every", "100ms")
	spec.Columns, spec.Rows = 80, 12
	p := proc.Start(t, spec)
	text, err := p.Terminal().Wait(limit(t),
		regexp.MustCompile(`(?s)peers\n  # +name +in rate .* 0 B/s.*\.\.\. and more: .*1 export`))
	if screen := text[strings.LastIndex(text, "node worker")+1:]; err != nil || strings.Count(screen, "\n") > 11 {
		t.Errorf("%v: it shows\n%s", err, text)
	}
	if err := p.Terminal().Type("\x03"); err != nil {
		t.Fatal(err)
	}
	if e, err := p.Wait(limit(t)); err != nil || e.Code != 0 {
		t.Error(e, err)
	}
}
