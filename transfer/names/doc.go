// Package names keeps things with names in the byte order of these, for lists by pages.
package names
