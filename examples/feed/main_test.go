package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestSelf(t *testing.T) {
	var out bytes.Buffer
	if err := run(t.Context(), &out, "host", 50); err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(out.String())
	for i, f := range fields {
		if (f == "published" || f == "results") && fields[i+1] != "50" {
			t.Error(out.String())
		}
	}
	if !strings.HasPrefix(out.String(), "50 datagrams were answered") {
		t.Error(out.String())
	}
	if err := run(t.Context(), &out, "none", 1); err == nil {
		t.Error("a runtime that is not there was opened")
	}
}
