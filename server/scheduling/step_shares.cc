#include "server/scheduling/step_shares.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace aft::server {
namespace {

constexpr double kRounding = 1e-6;  // more than sums of weights are off
// Of the longest step, what is planned for: steps of one size differ.
constexpr double kPlanned = 0.8;

// The smallest client first. Of two equal ones the one that has waited for longer comes later: what
// rounding leaves over falls to the last.
bool Before(const ClientShare& a, const ClientShare& b) {
  if (a.load() != b.load()) return a.load() < b.load();
  return a.oldest != b.oldest ? a.oldest > b.oldest : a.begin < b.begin;
}

// As many rows as the smallest client has for its weight, and at least one.
double Parity(const ClientShare& client, const ClientShare& smallest) {
  return std::clamp(std::ceil(smallest.load() * client.weight), 1.0,
                    static_cast<double>(client.rows));
}

}  // namespace

bool ShareStep(const StepCost& cost, double target, bool small, std::vector<ClientShare>& clients) {
  std::sort(clients.begin(), clients.end(), Before);
  const ClientShare& smallest = clients.front();
  double weights = 0;
  double left = 0;  // rows of the step
  for (const ClientShare& client : clients) {
    weights += client.weight;
    left += Parity(client, smallest);
  }
  if (!small) {
    const double alone = cost.fixed + cost.row * static_cast<double>(smallest.rows);
    const double longest = std::max(target, kPlanned * (1 + weights / smallest.weight) * alone);
    left = cost.row > 0 ? std::max(left, std::floor((longest - cost.fixed) / cost.row + kRounding))
                        : std::numeric_limits<double>::infinity();
  }
  bool cut = false;
  auto behind = static_cast<double>(clients.size());
  for (ClientShare& client : clients) {
    --behind;  // each of them has a row at least
    const double share = std::max(
        std::min(std::floor(left * client.weight / weights + kRounding), left - behind), 1.0);
    client.in_step =
        share < static_cast<double>(client.rows) ? static_cast<int64_t>(share) : client.rows;
    cut = cut || client.in_step < client.rows;
    left -= static_cast<double>(client.in_step);
    weights -= client.weight;
  }
  return cut;
}

void StepCostMeter::Mean::Add(double step_rows, double step_seconds) {
  if (rows == 0) {
    rows = step_rows;
    seconds = step_seconds;
    return;
  }
  const double expected = seconds * std::max(1.0, step_rows / rows);
  rows += (1 - kKeep) * (step_rows - rows);
  seconds += (1 - kKeep) * (std::min(step_seconds, kHeldUp * expected) - seconds);
}

void StepCostMeter::Observe(bool small, int64_t rows, Duration work, Duration time) {
  (small ? small_ : full_).Add(static_cast<double>(rows), Seconds(work));
  if (!small) time_.Add(static_cast<double>(rows), Seconds(time));
  const double more = full_.rows - small_.rows;
  if (small_.rows == 0 || more < 0) return;
  // A step takes no longer than one with more rows.
  small_.seconds = std::min(small_.seconds, full_.seconds);
  const double assumed = full_.seconds / (kUnknownRatio + full_.rows);
  const double row =
      (full_.seconds - small_.seconds + kAssumedRows * assumed) / (more + kAssumedRows);
  if (row > 0) ratio_ = std::max(small_.seconds / row - small_.rows, 0.0);
}

StepCost StepCostMeter::cost() const {
  const double row = time_.rows == 0 ? 1 : time_.seconds / (ratio_ + time_.rows);
  return {.fixed = ratio_ * row, .row = row};
}

}  // namespace aft::server
