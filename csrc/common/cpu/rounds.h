// The order in which lanes take the tiles of a matrix.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace robustdml::cpu {

// Tiles in rounds: those of a round share neither rows nor columns, so lanes seldom wait for each other. Rows
// and columns take what tiles add to them in the order of the rounds: the bits don't depend on who does what.
class Rounds {
  public:
    Rounds(std::int64_t rows, std::int64_t columns, bool alone)
        : size_(alone ? rows | 1 : std::max(rows, columns)),
          alone_(alone),
          rows_(rows),
          columns_(columns),
          row_turns_(size_),
          column_turns_(alone ? 0 : size_) {
        begin();
    }

    struct Place {
        std::int64_t row, column, round;
    };

    std::int64_t tasks() const { return size_ * per_round(); }
    void begin() {
        for (auto& turn : row_turns_) turn = 0;
        for (auto& turn : column_turns_) turn = 0;
    }
    // Alone: in round r the pairs with i + j = 2 r (mod size), each once.
    Place place(std::int64_t task) const {
        const std::int64_t round = task / per_round(), k = task % per_round();
        if (!alone_) return {k, (k + round) % size_, round};
        const std::int64_t i = (round + k) % size_, j = (round - k + size_) % size_;
        return {std::min(i, j), std::max(i, j), round};
    }
    bool exists(const Place& place) const { return place.row < rows_ && place.column < columns_; }
    void wait(const Place& place) {
        for (Turn* turn : turns(place))
            while (turn->load(std::memory_order_acquire) != place.round) std::this_thread::yield();
    }
    void leave(const Place& place) {
        for (Turn* turn : turns(place)) turn->store(place.round + 1, std::memory_order_release);
    }

  private:
    using Turn = std::atomic<std::int64_t>;
    std::int64_t per_round() const { return alone_ ? (size_ + 1) / 2 : size_; }
    std::array<Turn*, 2> turns(const Place& place) {
        return {&row_turns_[place.row], &(alone_ ? row_turns_ : column_turns_)[place.column]};
    }

    std::int64_t size_;
    bool alone_;
    std::int64_t rows_, columns_;
    std::vector<Turn> row_turns_, column_turns_;
};

}  // namespace robustdml::cpu
