package main

import "testing"

func TestLog(t *testing.T) {
	run(t, "testdata/log.c", []string{"-O2"})
	run(t, "testdata/log.c", []string{"-fsanitize=address,undefined"})
}
