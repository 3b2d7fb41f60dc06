package drivers_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/bench/stream"
	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/drivers"
	"github.com/penstock-io/penstock/engine/drivers/testdata/toy"
	"github.com/penstock-io/penstock/host/doctor"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/system"
)

func init() {
	if err := drivers.Add(&toy.Spec); err != nil { // the one line
		panic(err)
	}
}

const toyFile = `penstock:
  memory_regions: [{name: m, kind: host, num_bufs: 512, buf_size: 2KiB}]
  interfaces:
    - name: file
      address: toy://one
      toy: {last_byte: 7, loop: true}
      rx: {queues: [{memory_regions: [m]}]}
      tx: {queues: [{memory_regions: [m]}]}
    - name: address
      address: toy://two?last_byte=9
      tx: {queues: [{memory_regions: [m]}]}
`

func load(t *testing.T, text string) *config.Config {
	t.Helper()
	cfg, said := config.Load("toy.yaml", []byte(text), config.Options{})
	if cfg == nil {
		t.Fatal(said.Err())
	}
	return cfg
}

// An engine from outside is a folder and one line: files, addresses, plans, the doctor and
// benchmarks have it.
func TestToy(t *testing.T) {
	cfg := load(t, toyFile)
	if p := &cfg.Interfaces[0]; p.Engine != "toy" || p.PortSpec().Options != any(toy.Options{LastByte: 7, Loop: true}) {
		t.Errorf("%s, %+v", p.Engine, p.PortSpec().Options)
	}
	if again := load(t, string(cfg.YAML())); !again.Equal(cfg) {
		t.Errorf("printed as\n%s", cfg.YAML())
	}
	var explained bytes.Buffer
	if err := cfg.Explain(&explained); err != nil || !strings.Contains(explained.String(), "last_byte: 7") {
		t.Errorf("explained: %v\n%s", err, explained.String())
	}
	if text := config.Schema(); !bytes.Contains(text, []byte("last_byte")) ||
		!bytes.Contains(text, []byte("The last byte of the port's Ethernet address.")) {
		t.Error("the schema does not have it")
	}
	plan, err := system.MakePlan(cfg, system.Options{})
	if err != nil || plan.Err() != nil || !strings.Contains(strings.Join(plan.Interfaces[0].Options, " "),
		"last_byte=7") {
		t.Fatalf("%+v, %v, %v", plan, err, plan.Err())
	}
	s, err := system.Open(t.Context(), cfg, system.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for name, last := range map[string]byte{"file": 7, "address": 9} {
		if i := s.Port(name).Info(); i.Engine != "toy" || i.MAC != (packet.MAC{2, 0, 0, 0, 0, last}) {
			t.Errorf("%s: %+v", name, i)
		}
	}
	tx, err := s.Tx("file", 0)
	if err != nil {
		t.Fatal(err)
	}
	rx, err := s.Rx("file", 0)
	if err != nil {
		t.Fatal(err)
	}
	b := burst.New(1)
	if n, err := tx.Alloc(b, 1, 64); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	f := packet.UDPFrame{SrcMAC: packet.MAC{2, 0, 0, 0, 0, 7}, DstMAC: packet.MAC{2, 0, 0, 0, 0, 7}}
	copy(b.Bytes(0, 0), append(append(f.DstMAC[:], f.SrcMAC[:]...), 0x88, 0xb5))
	if err := tx.Send(b); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := rx.Recv(ctx, b); err != nil || b.Len() != 1 || b.PacketLen(0) != 64 {
		t.Fatal(err, b.Len())
	}
	b.Release()
}

// Errors of the toy's options name their place.
func TestToyMistakes(t *testing.T) {
	for change, want := range map[[2]string][]string{
		{"last_byte: 7", "last_bite: 7"}:             {":6:13:", "did you mean last_byte?"},
		{"last_byte: 7", "last_byte: 256"}:           {":6:24:", "1 to 255"},
		{"last_byte: 7", "last_byte: 13"}:            {":6:24:", "superstitious", "another number"},
		{"last_byte=9", "last_byte=x"}:               {":10:16:", "not a whole number"},
		{"last_byte=9", "lastbyte=9"}:                {":10:16:", "did you mean last_byte?"},
		{"toy://two?last_byte=9", "sim://b?loop=no"}: {":10:16:", "1 or 0"},
		{"toy: {", "xdp: {ring: 64}\n      toy: {"}:  {":6:12:", "says nothing to the engine toy"},
	} {
		_, said := config.Load("toy.yaml", []byte(strings.Replace(toyFile, change[0], change[1], 1)), config.Options{})
		for _, w := range want {
			if err := said.Err(); err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %v\nexpected %q", change[1], err, w)
			}
		}
	}
}

// The doctor asks for what the toy needs, by its place in the file.
func TestToyAtTheDoctor(t *testing.T) {
	n := doctor.NeedsOf(load(t, toyFile))
	if err := n.Check(); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open("../../host/doctor/testdata/laptop.txt") // a machine on which a plain user asks
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	m, err := doctor.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	found := false
	r := doctor.Run(m, n)
	for _, f := range r.Findings {
		found = found || f.Subject == "engine toy" && f.Verdict == doctor.Fail && f.Needed == "CAP_NET_RAW" &&
			len(f.At) == 2 && f.At[0].Line == 4
	}
	if !found {
		t.Errorf("%s", r.Text(true))
	}
}

// A benchmark of streams measures it.
func TestToyStream(t *testing.T) {
	r, err := stream.Run(t.Context(), stream.Options{Engines: []string{"toy"}, Sizes: []int{64},
		Tests: []string{stream.Flood}, Samples: 1, Trial: 5 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Rows) != 1 || !strings.HasPrefix(r.Rows[0].Name, "toy 64 B") || r.Rows[0].Traffic.Received == 0 {
		t.Errorf("%+v", r.Rows)
	}
}

// The table refuses what would be there twice, and what comes when others have read it.
func TestAdd(t *testing.T) {
	again := toy.Spec
	if drivers.Get("toy") != &toy.Spec {
		t.Error("the toy is not in the table")
	}
	if err := drivers.Add(&again); !errors.Is(err, engine.ErrInvalid) || !strings.Contains(err.Error(), "too late") {
		t.Error(err)
	}
}
