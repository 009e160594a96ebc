// Lanes on processors of their own.
#pragma once

#include <atomic>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#endif

namespace robustdml::cpu {

// Beside somebody else's busy process the scheduler leaves two threads on one processor for seconds: two and
// one is as even as three can be on two. The stranger then has a whole processor and both lanes half of one
// each, where one lane alone and one beside the stranger would have one and a half. So a lane that finds
// another where it is moves.
class Spread {
  public:
    explicit Spread(int lanes) : places_(lanes) {
        for (auto& place : places_) place = kNowhere;
    }

    // Called between chunks. The cost is negligible where each lane is alone.
    void settle(int lane) {
#if defined(__linux__)
        const int here = sched_getcpu();
        places_[lane] = here;
        for (int other = 0; other < lane; ++other)
            if (places_[other] == here) return move(lane);
#else
        (void)lane;
#endif
    }

    void leave(int lane) { places_[lane] = kNowhere; }

  private:
    static constexpr int kNowhere = -1;
    std::vector<std::atomic<int>> places_;

#if defined(__linux__)
    // To a processor that no other lane is on; where the thread may run is afterwards as it was.
    void move(int lane) {
        cpu_set_t allowed;
        if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
        cpu_set_t vacant = allowed;
        for (const auto& place : places_)
            if (place != kNowhere) CPU_CLR(place, &vacant);
        if (CPU_COUNT(&vacant) == 0 || sched_setaffinity(0, sizeof vacant, &vacant) != 0) return;
        places_[lane] = sched_getcpu();
        sched_setaffinity(0, sizeof allowed, &allowed);
    }
#endif
};

}  // namespace robustdml::cpu
