// Package share serves files to other nodes and fetches, uploads, mirrors and resumes theirs.
//
//	node, err := transfer.Open(ctx, transfer.Options{Anonymous: identity.All, Listen: []string{"tcp://127.0.0.1:7070"}})
//	s, err := share.Serve(ctx, node, share.Options{Root: "models", Tensors: true})
//
//	peer, err := node.Dial(ctx, "tcp://127.0.0.1:7070")
//	c := share.Over(peer)
//	entries, err := share.List(ctx, c, "")
//	f, err := share.Fetch(ctx, c, "llama/model.safetensors", share.FetchOptions{Output: "model.safetensors"})
//	m, err := share.Mirror(ctx, c, "models", share.MirrorOptions{})
//
// # Serving
//
// Each file below the root is mapped and exported for reading under its relative path, with
// slashes. Links (unless Options.FollowLinks is set), devices, and names that begin with a dot are
// left out; [Snapshot] says what was left out and why. Links that are not followed are listed
// apart, for a [Mirror] that keeps them. A [Tag] identifies the content: it is a hash of size,
// inode, modification and change time, or of the content itself (Options.Strong), so it is the same
// after a restart of the server and another one when the file changes. A file is looked at again
// whenever a peer asks for its name, so a changed, new or removed file is noticed then; a listing
// is as fresh as the last scan ([Server.Rescan], Options.RescanEvery), and has what the kernel has
// reported before a [Mirror] began. An uploaded file is mapped and exported when a peer asks for
// its name or for a listing, or a scan sees it.
//
// Only what is seen to be gone or changed is unexported. A file that cannot be looked at, say
// because this process has no descriptor left, stays as it is served; a listing that may lack names
// of files that are there says so, and a [Mirror] deletes nothing then.
//
// # Uploads
//
// An upload is written below a staging directory, into memory that is mapped over blocks of the
// disk. The blocks are allocated in steps ahead of the bytes, so a full disk is an error and no
// fault, and a peer that announces a large file takes little. [UploadTree] sends small files by
// batches: their bytes go into memory that batch after batch uses, and become files when all of a
// batch is there. Uploads are bounded by Options.MaxFiles, MaxBytes and KeepFree, in
// which directories count, too. What they leave unfinished belongs to the peer that began it, and
// goes after Options.KeepPartial.
//
// [UploadTree] uploads files and directories, some files at a time, and keeps what the other side
// has already with the same content. A [Filter] chooses by patterns what it uploads, and what
// [Mirror] fetches.
//
// # Removing
//
// [Remove] removes files that a share with Options.Removable serves, many in one exchange, and only
// plain files, under the names that they have without links. A name is free at once; who reads the
// file then gets an error. The caller says by a Tag which content it means, so that a file which
// replaced that one stays.
//
// # Fetching
//
// [Fetch] writes into OUTPUT.partial (where that is too long for a file system: [PartialSuffix]),
// which has its length from the start. A disk without room for it is an error before anything
// comes. The blocks are allocated a part at a time, each before its bytes may come; where others
// have filled the disk meanwhile, what came stays for the next attempt. The bytes go from the
// socket straight to their place in the mapped file. OUTPUT.partial.state is a text file that says
// what the partial file is and which chunks of it were verified, with a checksum of each. The state
// of a chunk is appended after its bytes; neither is synced to the disk on the way (the kernel is
// only asked to begin with the data), because a resumed transfer trusts nothing of it: it reads the
// chunks, compares their checksums, and goes on behind the last good one, if the other side still
// has the same content. At the end the data are synced (fsync), the file is renamed to OUTPUT and
// the directory is synced. So OUTPUT is whole whenever it exists, after any crash of the process or
// the machine.
//
// A file of less than 32 KiB comes in the answer of one call, together with what it is: a Fetch or
// Stream takes one round trip in a session that is there. It goes the same way to the disk. Where
// limits of a node hold what moves, and with [Conn.ByPath], it comes by a path as larger ones do.
//
// A [Mirror] asks for all names first, which are small, and decides by them what it fetches and
// deletes. It asks for their tags page by page while it fetches what the pages before have.
//
// It fetches small files by batches: one transfer for the bytes of many, one call that asks whether
// they are still the content of the listing, and no partial files. A file of a batch gets its name
// when it is synced; one that changed meanwhile is fetched by itself.
//
// # Connections
//
// [Over] takes one session: what is under way ends with it. [OverLink] takes a link, which dials
// again: everything here goes on over the next session, as the link's Retry says, also when the
// other process was restarted.
//
// # Who reads
//
// The bytes of a read go one-sided into the reader's memory, so a server sees none of it, except of
// a small file that it gives in an answer, which is a read that begins and ends there. Readers of
// this package say what they begin and end (Options.OnAccess, [Access]); programs that read exports
// by themselves do not. It is for people and for an orderly end, not for accounting: what was
// really served is in the node's own counts.
//
// # Names
//
// A file has the path that its name says, below the directory of the mirror, or of the share that
// takes it. [PathOf] refuses names from peers that are dangerous as paths. Files are created below
// an [os.Root], each directory on the way is checked not to be a symbolic link, and files are
// opened such that links, pipes and devices are refused. [Printable] makes a peer's text fit for a
// terminal.
package share
