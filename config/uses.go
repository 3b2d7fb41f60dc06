package config

import "strings"

// CoreUse is a core that something of a configuration is bound to.
type CoreUse struct {
	Core      int
	Path      string // of the value, such as interfaces[0].rx.queues[1].cpu_core
	What      string // in words
	Interface string // name of the interface whose packets it works on; empty: none
	Polls     bool   // all the time
}

// CoreUses are all cores that the configuration names, in the order of the file.
func (c *Config) CoreUses() []CoreUse {
	var out []CoreUse
	for _, u := range c.cores() {
		out = append(out, CoreUse{u.core, u.path, u.what, c.interfaceOf(u.path), u.polls})
	}
	return out
}

// interfaceOf is the name of the interface that something at a path is about; empty where it is
// about none, or about several.
func (c *Config) interfaceOf(path string) string {
	for i := range c.Interfaces {
		if strings.HasPrefix(path, item("interfaces", i)+".") {
			return c.Interfaces[i].Name
		}
	}
	for i := range c.Applications {
		if strings.HasPrefix(path, item("applications", i)+".") {
			return c.Applications[i].Interface
		}
	}
	for i := range c.BenchRx {
		if strings.HasPrefix(path, item("bench_rx", i)+".") {
			return c.BenchRx[i].Interface
		}
	}
	for i := range c.BenchTx {
		if strings.HasPrefix(path, item("bench_tx", i)+".") {
			return c.BenchTx[i].Interface
		}
	}
	return ""
}

// At is the place in the file of the value at a path, or of the section around it where the file
// leaves the value out. It is the zero Pos for a Config that a program wrote. Paths are those of
// Source.
func (c *Config) At(path string) Pos { return c.nearestSource(path).At }
