// Package process runs the DNS server in a small process of its own, so that it answers while the
// agent restarts and while a new version replaces it.
//
// The agent binds the sockets and starts the process with them. The process gives up root, all
// capabilities and the file system before it reads its first query. It continues after the agent
// ends, and the next agent connects to its control socket. An agent of another version takes over the
// sockets, and starts a new process with them, so that no query is lost.
//
// Child runs in the process; Supervisor is the agent's side.
//
// The agent acts only on a process that holds the control socket of its directory, or that its
// record identifies by process ID, start time and boot.
package process
