#include "server/scheduling/step_shares.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace aft::server {
namespace {

constexpr double kRounding = 1e-6;  // larger than the error of sums of weights
// The part of the longest step that is planned for, because steps of one size differ.
constexpr double kPlanned = 0.8;

// Sorts the smallest client first. Of two equal ones the one that has waited longer comes later,
// because the last one gets what rounding leaves.
bool Before(const ClientShare& a, const ClientShare& b) {
  if (a.load() != b.load()) return a.load() < b.load();
  return a.oldest > b.oldest;
}

// As many tokens for its weight as the smallest client has, and at least one.
double Parity(const ClientShare& client, const ClientShare& smallest) {
  return std::clamp(std::ceil(smallest.load() * client.weight), 1.0,
                    static_cast<double>(client.tokens));
}

}  // namespace

bool ShareStep(const StepCost& cost, double target, bool small, std::vector<ClientShare>& clients) {
  std::sort(clients.begin(), clients.end(), Before);
  const ClientShare& smallest = clients.front();
  double weights = 0;
  double left = 0;  // tokens of the step
  for (const ClientShare& client : clients) {
    weights += client.weight;
    left += Parity(client, smallest);
  }
  if (!small) {
    const double alone = cost.fixed + cost.token * static_cast<double>(smallest.tokens);
    const double longest = std::max(target, kPlanned * (1 + weights / smallest.weight) * alone);
    left = cost.token > 0
               ? std::max(left, std::floor((longest - cost.fixed) / cost.token + kRounding))
               : std::numeric_limits<double>::infinity();
  }
  bool cut = false;
  auto behind = static_cast<double>(clients.size());
  for (ClientShare& client : clients) {
    --behind;  // each of them gets at least one token
    const double share = std::max(
        std::min(std::floor(left * client.weight / weights + kRounding), left - behind), 1.0);
    client.in_step =
        share < static_cast<double>(client.tokens) ? static_cast<int64_t>(share) : client.tokens;
    client.cut = client.in_step < client.tokens;
    cut = cut || client.cut;
    left -= static_cast<double>(client.in_step);
    weights -= client.weight;
  }
  return cut;
}

void StepCostMeter::Mean::Add(double step_tokens, double step_seconds) {
  if (tokens == 0) {
    tokens = step_tokens;
    seconds = step_seconds;
    return;
  }
  const double expected = seconds * std::max(1.0, step_tokens / tokens);
  tokens += (1 - kKeep) * (step_tokens - tokens);
  seconds += (1 - kKeep) * (std::min(step_seconds, kHeldUp * expected) - seconds);
}

void StepCostMeter::Observe(bool small, int64_t tokens, Duration work, Duration time) {
  (small ? small_ : full_).Add(static_cast<double>(tokens), Seconds(work));
  if (!small) time_.Add(static_cast<double>(tokens), Seconds(time));
  const double more = full_.tokens - small_.tokens;
  if (small_.tokens == 0 || more < 0) return;
  // A step takes no longer than one with more tokens.
  small_.seconds = std::min(small_.seconds, full_.seconds);
  const double assumed = full_.seconds / (kUnknownRatio + full_.tokens);
  const double token =
      (full_.seconds - small_.seconds + kAssumedTokens * assumed) / (more + kAssumedTokens);
  if (token > 0) ratio_ = std::max(small_.seconds / token - small_.tokens, 0.0);
}

StepCost StepCostMeter::cost() const {
  const double token = time_.tokens == 0 ? 1 : time_.seconds / (ratio_ + time_.tokens);
  return {.fixed = ratio_ * token, .token = token};
}

}  // namespace aft::server
