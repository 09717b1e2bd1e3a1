package agent

import (
	"log/slog"
	"os"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/pkg/config"
)

// setLimits sets the OOM score and the limit of open files of this process, if they are configured.
// Like the kubelet, it only logs a failure.
func setLimits(cfg config.Config, log *slog.Logger) {
	if cfg.OOMScoreAdj != "" {
		if err := os.WriteFile("/proc/self/oom_score_adj", []byte(cfg.OOMScoreAdj), 0); err != nil {
			log.Warn("Failed to set the OOM score of the agent", "oom_score_adj", cfg.OOMScoreAdj, "error", err)
		}
	}
	if n := uint64(cfg.MaxOpenFiles); n > 0 {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: n}); err != nil {
			log.Warn("Failed to set the limit of open files of the agent", "limit", n, "error", err)
		}
	}
}
