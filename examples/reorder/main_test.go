package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/engine"
)

// Each batch that is printed has the elements of its samples, and what was left out is missing in
// the map.
func TestSelf(t *testing.T) {
	var out bytes.Buffer
	if err := run(t.Context(), &out, "udp://127.0.0.1:0", 8, true); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 9 {
		t.Fatal(out.String())
	}
	all, placed := 0, 0
	for i, l := range lines[:8] {
		var id, n, of int
		var places string
		var v [4]float64
		if _, err := fmt.Sscanf(l, "batch %d: %d of %d packets %s fp16 %f %f %f %f", &id, &n, &of, &places, &v[0],
			&v[1], &v[2], &v[3]); err != nil {
			t.Fatal(l, err)
		}
		if id != i || of != 16 || strings.Count(places, "#") != n || len(places) != 16 {
			t.Error(l)
		}
		all += n
		for k := range 4 {
			want := math.Round(1024*math.Sin(float64(i*16*64+k)/50)) / 1024
			if places[0] == '.' {
				want = 0
			}
			if math.Abs(v[k]-want) > 0.002 {
				t.Errorf("%s: element %d, want %v", l, k, want)
			}
		}
	}
	var whole, partial, lost int
	if _, err := fmt.Sscanf(lines[8], "%d batches whole, %d partial, %d lost; %d packets placed", &whole, &partial,
		&lost, &placed); err != nil || placed != all || whole+partial != 8 || partial == 0 || lost != 0 {
		t.Error(lines[8], err)
	}
}

func TestErrors(t *testing.T) {
	if err := run(t.Context(), nil, "udp://", 1, true); !errors.Is(err, engine.ErrInvalid) {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := run(ctx, nil, "udp://127.0.0.1:0", 1, false); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}
