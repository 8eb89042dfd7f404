"""The pages of schedules: their list, the page of one, its form, and what may be done to them."""
