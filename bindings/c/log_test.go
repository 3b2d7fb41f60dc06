package main

import "testing"

func TestLog(t *testing.T) {
	for _, name := range []string{inProcess, byAgent} {
		run(t, name, "testdata/log.c", []string{"-O2"})
		run(t, name, "testdata/log.c", []string{"-fsanitize=address,undefined"})
	}
}
