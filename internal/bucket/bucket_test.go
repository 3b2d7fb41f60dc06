package bucket

import (
	"math/big"
	"testing"

	"pgregory.net/rapid"
)

// model is a token bucket in rational numbers.
type model struct {
	rate, burst *big.Rat // bits per nanosecond, bits
	tokens      *big.Rat
	at          int64
}

func rat(n int64) *big.Rat { return new(big.Rat).SetInt64(n) }

func newModel(rate uint64, burst int, now int64) *model {
	m := &model{rate: rat(int64(rate)), burst: rat(8 * int64(burst)), at: now}
	m.rate.Quo(m.rate, rat(1e9))
	m.tokens = m.burst
	return m
}

// have is the number of tokens at a later time.
func (m *model) have(now int64) *big.Rat {
	n := new(big.Rat).Mul(rat(now-m.at), m.rate)
	if n.Add(n, m.tokens); n.Cmp(m.burst) > 0 {
		return m.burst
	}
	return n
}

func (m *model) allows(now int64, n int) bool {
	need := rat(8 * int64(n))
	if need.Cmp(m.burst) > 0 {
		need = m.burst
	}
	return m.have(now).Cmp(need) >= 0
}

func (m *model) spend(now int64, n int) {
	m.tokens = new(big.Rat).Sub(m.have(now), rat(8*int64(n)))
	m.at = now
}

// Earliest is the first nanosecond at which the model allows a packet, and no window has more than
// rate*window + burst.
func TestBucketModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rate := rapid.OneOf(rapid.Uint64Range(1, 100), rapid.Uint64Range(1e3, 400e9),
			rapid.Just(uint64(MaxRate))).Draw(t, "rate")
		burst := rapid.OneOf(rapid.IntRange(1, 3000), rapid.IntRange(1, 1<<24)).Draw(t, "burst")
		start := rapid.Int64Range(0, 1<<50).Draw(t, "start")
		k, err := New(rate, burst, start)
		if err != nil {
			t.Fatal(err)
		}
		m := newModel(rate, burst, start)
		type sent struct {
			at int64
			n  int
		}
		var log []sent
		now, largest := start, burst
		for range rapid.IntRange(1, 60).Draw(t, "packets") {
			now += rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(0, 1e6), rapid.Int64Range(0, 1e10)).Draw(t, "gap")
			n := rapid.OneOf(rapid.IntRange(0, 9000), rapid.IntRange(0, 2*burst)).Draw(t, "bytes")
			at := k.Earliest(n)
			if at > now {
				if !m.allows(at, n) || m.allows(at-1, n) {
					t.Fatalf("%d bytes at %d: the first time is another one", n, at)
				}
				now = at
			} else if !m.allows(now, n) {
				t.Fatalf("%d bytes at %d: there are only %v bits", n, now, m.have(now))
			}
			k.Spend(now, n)
			m.spend(now, n)
			log = append(log, sent{now, n})
			largest = max(largest, n)
			if now > 1<<60 {
				break
			}
		}
		for i := range log {
			sum := rat(0)
			for _, s := range log[i:] {
				sum.Add(sum, rat(8*int64(s.n)))
				limit := new(big.Rat).Mul(rat(s.at-log[i].at), m.rate)
				if limit.Add(limit, rat(8*int64(largest))); sum.Cmp(limit) > 0 {
					t.Fatalf("%v bits from %d to %d, at most %v", sum, log[i].at, s.at, limit)
				}
			}
		}
	})
}

// A queue that always has packets gets its rate to the nanosecond, however long it takes.
func TestBucketNoDrift(t *testing.T) {
	const packets, bytes, burst = 300_000, 1501, 9000
	for _, rate := range []uint64{999_999_937, 7, 99_999_999_977} {
		k, err := New(rate, burst, 0)
		if err != nil {
			t.Fatal(err)
		}
		var now int64
		for range packets {
			now = max(now, k.Earliest(bytes))
			k.Spend(now, bytes)
		}
		// All but the burst have waited for their tokens.
		want := new(big.Int).Mul(big.NewInt(8*(packets*bytes-burst)), big.NewInt(1e9))
		r := new(big.Int).SetUint64(rate)
		want.Add(want, r).Sub(want, big.NewInt(1)).Quo(want, r)
		if want.Cmp(big.NewInt(now)) != 0 {
			t.Errorf("%d bit/s: the last packet left at %d ns, want %v", rate, now, want)
		}
	}
}

func TestBucketBounds(t *testing.T) {
	for _, bad := range []struct {
		rate  uint64
		burst int
	}{{0, 1}, {1, 0}, {1, -1}, {MaxRate + 1, 1}, {1, MaxBurst + 1}} {
		if _, err := New(bad.rate, bad.burst, 0); err == nil {
			t.Errorf("%+v: a bucket", bad)
		}
	}
	// What takes for ever takes for ever, and does not come round.
	k, _ := New(1, MaxBurst, 1e18)
	for range 10 {
		if now := max(1e18, k.Earliest(MaxBurst)); now < 1e18 || now > 2*forever {
			t.Fatal(now)
		}
		k.Spend(1e18, MaxBurst)
	}
	if k.Earliest(MaxBurst) != forever {
		t.Error(k.Earliest(MaxBurst))
	}
}

func BenchmarkBucket(b *testing.B) {
	k, _ := New(10e9, 1<<20, 0)
	b.ReportAllocs()
	var now int64
	for b.Loop() {
		now = max(now, k.Earliest(1500))
		k.Spend(now, 1500)
	}
}
