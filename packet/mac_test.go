package packet

import (
	"bytes"
	"encoding/json"
	"errors"
	"net"
	"testing"

	"pgregory.net/rapid"
)

func TestMAC(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := MAC(rapid.SliceOfN(rapid.Byte(), 6, 6).Draw(t, "mac"))
		if want := net.HardwareAddr(m[:]).String(); m.String() != want {
			t.Fatalf("%s, want %s", m, want)
		}
		if got, err := ParseMAC(m.String()); err != nil || got != m {
			t.Fatalf("%s: %s, %v", m, got, err)
		}
		b, err := json.Marshal(map[MAC]MAC{m: m})
		if err != nil {
			t.Fatal(err)
		}
		var back map[MAC]MAC
		if err := json.Unmarshal(b, &back); err != nil || back[m] != m || len(back) != 1 {
			t.Fatalf("%s: %v, %v", b, back, err)
		}
	})
	m := MAC{1, 2, 3, 4, 5, 6}
	for range 2 {
		if err := m.UnmarshalText([]byte("nonsense")); !errors.Is(err, ErrMAC) || m != (MAC{1, 2, 3, 4, 5, 6}) {
			t.Errorf("%v, %v", m, err)
		}
	}
	if !BroadcastMAC.IsBroadcast() || !BroadcastMAC.IsMulticast() || m.IsBroadcast() || !m.IsMulticast() ||
		m.IsZero() || !(MAC{}).IsZero() ||
		!(MAC{2}).IsLocal() || m.IsLocal() {
		t.Error("kinds of addresses")
	}
}

// FuzzParseMAC: what net.ParseMAC says, for addresses of 6 bytes.
func FuzzParseMAC(f *testing.F) {
	for _, s := range []string{"02:00:5e:10:00:01", "02-00-5E-10-00-01", "0200.5e10.0001", "02005E100001",
		"0200:5e10:0001", "02:00:5e:10:00-01", "02:00:5e:10:00:0", "",
		"02:00:5e:10:00:0g", "02.00.5e.10.00.01", "02:00:5e:10:00:00:00:01", "0200.5e10-0001", "020:05e:10:00:01:1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := ParseMAC(s)
		want, wantErr := net.ParseMAC(s)
		if len(want) != 6 {
			if err == nil {
				t.Fatalf("%q: %s, net.ParseMAC says %v", s, got, wantErr)
			}
			return
		}
		if err != nil || !bytes.Equal(got[:], want) {
			t.Fatalf("%q: %s, %v; want %s", s, got, err, want)
		}
	})
}
