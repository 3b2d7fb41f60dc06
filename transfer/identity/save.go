package identity

// Save writes credentials to a directory from which Open reads them. It makes the directory if
// there is none, and replaces what is there.
func Save(dir string, c Credentials) error {
	if err := makeDir(dir); err != nil {
		return err
	}
	return save(dir, c)
}
