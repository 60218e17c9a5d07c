#pragma once

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "server/config/config.h"
#include "server/registry/model_registry.h"
#include "server/scheduling/time.h"

namespace aft::server {

// Derives the server's health from the states of its models. Thread-compatible.
class Readiness {
 public:
  explicit Readiness(HealthConfig config) : config_(std::move(config)) {}

  // Must be called when a model has changed, and regularly.
  void Update(const std::vector<ModelStatus>& models, TimePoint now) {
    const auto serves = [](const ModelStatus& model) {
      return model.state == ModelState::kReady || model.state == ModelState::kDraining;
    };
    const auto as_wanted = [&](const ModelStatus& model) {
      // While a model loads, it leaves the server as it was: not ready at the start or after it has
      // failed, and ready if it was unloaded or is new.
      return serves(model) || model.state == ModelState::kUnloaded ||
             (ready_ && model.state == ModelState::kLoading);
    };
    ready_ = config_.readiness == "any" ? std::any_of(models.begin(), models.end(), serves)
                                        : std::all_of(models.begin(), models.end(), as_wanted);
    const bool failed = std::any_of(models.begin(), models.end(), [](const ModelStatus& model) {
      return model.state == ModelState::kFailed && model.info.has_value();
    });
    if (ready_ || !failed) {
      broken_since_.reset();
    } else if (!broken_since_.has_value()) {
      broken_since_ = now;
    }
    alive_ = !broken_since_.has_value() || now - *broken_since_ < config_.liveness_grace;
  }

  // Whether as many models serve as health.readiness asks for.
  bool ready() const { return ready_; }

  // False if a loaded model has failed and the server has not been ready for health.liveness_grace:
  // a new process may be able to serve the model. A model that failed to load does not count,
  // because a new process could not load it either.
  bool alive() const { return alive_; }

 private:
  const HealthConfig config_;
  bool ready_ = false;
  bool alive_ = true;
  std::optional<TimePoint> broken_since_;
};

}  // namespace aft::server
