// Package agent assembles an agent from its parts. It locks the root directory, finds or starts the
// container runtime, and runs the engine, the server, the membership in a cluster and their
// supervision. Package readonly is its read-only half.
//
// Open makes the parts that serve and runonce share. Run adds the parts of a serving agent.
//
// Pods need Linux: on other systems, the package has only Startable.
//
// The package connects parts and decides nothing about pods.
package agent
