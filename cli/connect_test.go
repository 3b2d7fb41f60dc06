package cli

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/penstock-io/penstock/config"
)

func TestParseTarget(t *testing.T) {
	for in, want := range map[string]target{
		"127.0.0.1:7070":              {"tcp://127.0.0.1:7070", ""},
		"tcp://[::1]:7070/a/b":        {"tcp://[::1]:7070", "a/b"},
		"tcp://[::1]:7070/":           {"tcp://[::1]:7070", ""},
		"tcp://host":                  {"tcp://host:7070", ""},
		"tcp://[::1]/a":               {"tcp://[::1]:7070", "a"},
		"tcp://alice@host/a:b":        {"tcp://alice@host:7070", "a:b"},
		"tcp://alice@host:1//x":       {"tcp://alice@host:1", "/x"},
		"unix://@abstract/a/b":        {"unix://@abstract", "a/b"},
		"unix:///no/socket/here/name": {"unix:///no/socket/here/name", ""},
	} {
		if got, err := parseTarget(in); err != nil || got != want {
			t.Errorf("%s: %+v, %v; expected %+v", in, got, err, want)
		}
	}
	for _, in := range []string{"", "host", "tcp://", "tcp:///x", "ftp://h:1", "unix://", "://x:1"} {
		if got, err := parseTarget(in); !as[*usageError](err) {
			t.Errorf("%s: %+v, %v", in, got, err)
		}
	}
	if defaultPort != strconv.Itoa(config.DefaultPort) {
		t.Errorf("the port of commands is %s, of generated files %d", defaultPort, config.DefaultPort)
	}
}

func TestNearest(t *testing.T) {
	names := []string{"model.safetensors", "layers.0.weight", "layers.1.weight", "layers.10.weight", "sub/tokens.json",
		"README"}
	for in, want := range map[string]string{
		"modle.safetensors": "[model.safetensors]",
		"layers.2.weight":   "[layers.0.weight layers.1.weight layers.10.weight]",
		"tokens.json":       "[sub/tokens.json]",
		"readme":            "[README]",
		"quite different":   "[]",
		"x":                 "[]",
		"":                  "[]",
	} {
		if got := fmt.Sprint(nearest(in, names)); got != want {
			t.Errorf("%q: %s, expected %s", in, got, want)
		}
	}
}
