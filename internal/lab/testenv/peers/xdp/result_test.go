package xdp

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/peers"
)

func golden(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestRecordedOutput(t *testing.T) {
	c := Config{Interfaces: []string{"a", "b"}, Slots: 8192}
	if err := c.complete(); err != nil {
		t.Fatal(err)
	}
	if err := parseReady(golden(t, "ready.json"), &c); err != nil {
		t.Error(err)
	}
	r, err := parse(golden(t, "recv.json"), Receive, 8900)
	want := Result{Packets: 7842, Bytes: 69793800, Chunks: 23526, Wall: 290994412, CPU: 30098432 * time.Nanosecond,
		Dropped: 862, NoChunks: 862, FillChunks: 6144}
	if err != nil || r != want {
		t.Errorf("%+v, %v", r, err)
	}
	r, err = parse(golden(t, "fwd.json"), Forward, 64)
	if err != nil || r.Packets != 8192 || r.Matched != 8192 || r.Calls != 128 {
		t.Errorf("%+v, %v", r, err)
	}
}

// What is not an answer to the command is an error that shows it.
func TestOtherOutput(t *testing.T) {
	good := string(golden(t, "fwd.json"))
	for change, to := range map[string]string{
		`"op":"fwd"`:          `"op":"recv"`,
		`"bytes":524288`:      `"bytes":524289`,
		`"packets":8192`:      `"packets":8191`,
		`"descs":8192`:        `"descs":8191`,
		`"matched":8192`:      `"matched":8193`,
		`"checked":0`:         `"checked":524289`,
		`"bad":0`:             `"bad":8193`,
		`"gaps":0`:            `"gaps":-1`,
		`"ns":282445050`:      `"ns":-1`,
		`"calls":128`:         `"call":128`,
		`"tx_invalid":0`:      `"tx_invalid":18446744073709551616`,
		`"fill_chunks":8192}`: `"fill_chunks":8192}{}`,
		"\n":                  "x\n",
		good:                  "",
	} {
		text := strings.Replace(good, change, to, 1)
		if text == good {
			t.Fatalf("%s is not in the recorded line", change)
		}
		if r, err := parse([]byte(text), Forward, 64); !errors.Is(err, peers.ErrOutput) || r != (Result{}) {
			t.Errorf("%s: %+v, %v", to, r, err)
		}
	}
	c := Config{Interfaces: []string{"a"}}
	if err := c.complete(); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"", "{}", string(golden(t, "ready.json")), good} {
		if err := parseReady([]byte(text), &c); !errors.Is(err, peers.ErrOutput) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// FuzzParse shows that what passes obeys the bounds that callers reckon with.
func FuzzParse(f *testing.F) {
	f.Add(golden(f, "recv.json"), 8900)
	f.Add(golden(f, "fwd.json"), 64)
	f.Add([]byte(`{"op":"send","ns":-1}`), 64)
	f.Fuzz(func(t *testing.T, b []byte, size int) {
		for _, op := range []Op{Receive, Send, Forward} {
			r, err := parse(b, op, size)
			if err != nil {
				if !errors.Is(err, peers.ErrOutput) || r != (Result{}) {
					t.Fatalf("%+v, %v", r, err)
				}
				continue
			}
			if r.Bytes/uint64(size) != r.Packets || r.Matched > r.Packets || r.Checked > r.Bytes || r.Wall < 0 ||
				r.CPU < 0 || !json.Valid(b) {
				t.Fatalf("%+v", r)
			}
		}
	})
}

func TestConfig(t *testing.T) {
	for _, c := range []Config{{}, {Interfaces: []string{"a", "b", "c"}}, {Interfaces: []string{""}},
		{Interfaces: []string{"a b"}}} {
		if _, err := Start(nil, c); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	c := Config{Interfaces: []string{"a"}, Slots: 5000, MultiBuffer: true, CPU: -1, Budget: -1}
	if err := c.complete(); err != nil || c.Ring != 8192 || c.Chunk != 4096 {
		t.Errorf("%+v, %v", c, err)
	}
	if a := strings.Join(c.args(), " "); strings.Contains(a, "cpu=") || !strings.Contains(a, "budget=0 ") ||
		!strings.Contains(a, "sg=1 ") {
		t.Error(a)
	}
	for c, want := range map[Command]string{
		{Op: Send, Packets: 5, Time: time.Second, Check: true}: "send if=0 touch=0 check=1 seq=0 packets=5 ms=1000",
		{Op: Receive, From: 1, Live: true,
			Seq: 7}: "recv if=1 touch=0 check=0 seq=7 live=1 brief=0 packets=0",
		{Op: Forward, To: 1, Touch: true}: "fwd if=0 touch=1 check=0 seq=0 to=1 live=0",
	} {
		if c.String() != want {
			t.Errorf("%s, expected %s", c, want)
		}
	}
}
