package testenv

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// Entry is a line of the ledger: one use of a part of the lab by one test.
type Entry struct {
	Kind   string `json:"kind"`   // guest, netns, fake, peer, skip ...
	What   string `json:"what"`   // profile, library, tool
	Test   string `json:"test"`   // the test that used it
	Detail string `json:"detail"` // for people: version, seconds
	Failed bool   `json:"failed,omitempty"`
}

// Record writes into the ledger, when the test ends, that it used a part of the lab. The ledger is
// the file $PENSTOCK_LAB_LEDGER; without it Record does nothing. From the ledger the test command
// prints what really ran.
func Record(t TB, kind, what, detail string) {
	file := os.Getenv("PENSTOCK_LAB_LEDGER")
	if file == "" {
		return
	}
	t.Cleanup(func() {
		line, err := json.Marshal(Entry{kind, what, t.Name(), detail, t.Failed()})
		if err != nil {
			t.Errorf("testenv: ledger: %v", err)
			return
		}
		// One write of one short line in append mode: lines of several processes do not mix.
		f, err := os.OpenFile(file, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
		if err != nil {
			t.Errorf("testenv: ledger: %v", err)
			return
		}
		defer f.Close()
		if _, err := f.Write(append(line, '\n')); err != nil {
			t.Errorf("testenv: ledger: %v", err)
		}
	})
}

// ReadLedger reads the entries of a ledger file, in order, without repetitions of the same use by
// the same test.
func ReadLedger(r io.Reader) ([]Entry, error) {
	var out []Entry
	seen := map[[3]string]int{}
	dec := json.NewDecoder(r)
	for n := 1; ; n++ {
		var e Entry
		err := dec.Decode(&e)
		if err == io.EOF {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("testenv: ledger: entry %d: %w", n, err)
		}
		k := [3]string{e.Kind, e.What, e.Test}
		if i, ok := seen[k]; ok {
			out[i].Failed = out[i].Failed || e.Failed
			continue
		}
		seen[k] = len(out)
		out = append(out, e)
	}
}

// Uses counts, for each kind and thing, the tests that used it and passed, in sorted order.
func Uses(entries []Entry) []Use {
	var out []Use
	for _, e := range entries {
		i := slices.IndexFunc(out, func(u Use) bool { return u.Kind == e.Kind && u.What == e.What })
		if i < 0 {
			i = len(out)
			out = append(out, Use{Kind: e.Kind, What: e.What})
		}
		u := &out[i]
		if e.Failed {
			u.Failed++
			continue
		}
		u.Passed++
		u.Tests = append(u.Tests, e.Test)
		u.Detail = e.Detail
	}
	slices.SortFunc(out, func(a, b Use) int { return strings.Compare(a.Kind+"\x00"+a.What, b.Kind+"\x00"+b.What) })
	return out
}

// Use is how often a thing of the lab was used.
type Use struct {
	Kind, What     string
	Passed, Failed int
	Tests          []string // those that passed
	Detail         string   // of the last that passed
}
