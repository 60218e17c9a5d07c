#pragma once

#include <functional>
#include <string>

#include "contract/scenario.pb.h"

namespace aft::client::contract {

// Does what the scenario asks for with the C++ library, in the way BLOCKING or LISTENER. `cut`
// breaks the connection for Then.CUT.
Observed RunCpp(const Scenario& scenario, Way way, const std::string& address,
                const std::function<void()>& cut);

}  // namespace aft::client::contract
