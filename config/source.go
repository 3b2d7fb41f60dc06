package config

import (
	"fmt"
	"strings"
)

// Origin says where a value came from.
type Origin uint8

// The origins. The zero Origin is that of a Config that a program wrote.
const (
	FromProgram Origin = iota
	FromFile
	FromDefault // of the table
	FromRule    // it follows from other values, see Source.Why
)

func (o Origin) String() string {
	return [...]string{"program", "file", "default", "derived"}[min(o, FromRule)]
}

// Source is where a value came from.
type Source struct {
	Origin Origin
	At     Pos    // in the file; zero where it is not from there
	Width  int    // characters there
	Text   string // as it is written there
	Why    string // of FromRule: in words, "num_bufs of region rx"
}

// Source returns where the value at a path came from. A path is made of the keys in Penstock's
// format, such as interfaces[0].rx.queues[1].cpu_core. Lists and sections have sources too. The
// zero Source is returned for what is not there.
func (c *Config) Source(path string) Source { return c.sources[path] }

// At is the place in the file of the value at a path, or of the section around it where the file
// leaves the value out. It is the zero Pos for a Config that a program wrote. Paths are those of
// Source.
func (c *Config) At(path string) Pos { return c.nearestSource(path).At }

// Name is the name of the file, as Load got it.
func (c *Config) Name() string { return c.name }

// Dialect is the spelling of the file.
func (c *Config) Dialect() Dialect { return c.dialect }

// note keeps the source of a value.
func (c *Config) note(path string, s Source) {
	if c.sources == nil {
		c.sources = map[string]Source{}
	}
	c.sources[path] = s
}

// given reports whether the author wrote the value at path: the one of the file, or of the program
// that made the Config.
func (c *Config) given(path string) bool {
	s, ok := c.sources[path]
	return ok && s.Origin == FromFile
}

// nearestSource is the source at path, or of the section around it.
func (c *Config) nearestSource(path string) Source {
	for {
		if s, ok := c.sources[path]; ok && !s.At.IsZero() {
			return s
		}
		i := strings.LastIndexAny(path, ".[")
		if i < 0 {
			return Source{}
		}
		path = path[:i]
	}
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func item(path string, i int) string { return fmt.Sprintf("%s[%d]", path, i) }
