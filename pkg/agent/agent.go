// Package agent assembles an agent from its parts: it locks the root directory, finds or
// starts the container runtime, and runs the engine, the server, the membership in a
// cluster and what watches over them. Package look is its read-only half.
//
// Open makes the parts of the machine, which serve and runonce share; Run adds those of a serving
// agent.
//
// Pods need Linux: elsewhere the package has only what checks a configuration.
//
// The one rule: it connects parts and decides nothing about pods.
package agent
