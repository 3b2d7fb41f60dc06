package record

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/packet/filter"
	"github.com/penstock-io/penstock/packet/pcap"
)

// What does not match is counted and not in the file, also where a packet has several segments. The
// file names the filter.
func TestFilter(t *testing.T) {
	const text = "len < 100 or ether[1000] = 4"
	if _, err := filter.Compile(text, pcap.Ethernet); err != nil {
		testenv.Missing(t, "libpcap", err)
	}
	name := filepath.Join(t.TempDir(), "x")
	r := open(t, Options{Name: name, Format: PcapNG, Filter: text})
	f, want := newFeed(t), uint64(0)
	for i := range 512 {
		if byte(i+1000) == 4 {
			want++
		}
		r.Add(f.burst(frame(i, 1400), 0, int64(i)))
	}
	r.Add(f.burst(frame(7, 99), 0, 600))
	r.Add(f.burst(frame(7, 99), 100, 601)) // cut: it had 100
	want++
	if err := r.Close(limit(t)); err != nil {
		t.Fatal(err)
	}
	if s := r.Stats(); want != 3 || s.Packets != want || s.Filtered != 514-want {
		t.Errorf("%+v, expected %d", s, want)
	}
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if s := statistics(t, b); s[2] != 514 || s[3] != 0 || s[4] != want || s[6] != want {
		t.Errorf("statistics %v", s)
	}
	all, _ := blocks(t, b)
	option := string(binary.LittleEndian.AppendUint16([]byte{11, 0}, uint16(len(text)+1))) + "\x00" + text
	if !strings.Contains(string(all[1].body), option) {
		t.Errorf("no filter in the interface block %q", all[1].body)
	}
}
